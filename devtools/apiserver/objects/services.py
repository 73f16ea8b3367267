"""ClusterIPs: allocated from the Service CIDR, kept apart, given back. Called with the store's lock held."""

from __future__ import annotations

from ipaddress import IPv4Network

from devtools.apiserver.errors import Json, internal, invalid
from devtools.apiserver.storage.history import ObjectKey


class ServiceAddresses:
    """Which ClusterIP belongs to which Service.

    Like the real server it leaves the beginning of the range to Services that ask for an address.
    """

    def __init__(self, cidr: IPv4Network) -> None:
        self.cidr = cidr
        self._taken: dict[str, ObjectKey] = {}
        self._next = min(256, cidr.num_addresses // 16)  # offset of the next address to allocate

    @property
    def api_address(self) -> str:
        """Return the ClusterIP of the Service `kubernetes`."""
        return str(self.cidr[1])

    def assign(self, key: ObjectKey, service: Json, old: Json | None) -> Json:
        """Return a Service with its address, allocated if it asks for none. Raises ApiError 422, 500."""
        spec = service["spec"]
        if spec.get("type") == "ExternalName":
            return service
        kept = (old or {}).get("spec", {}).get("clusterIP")
        requested = spec.get("clusterIP") or kept
        if kept and requested != kept:
            raise invalid(
                "Service", key[1], "spec.clusterIPs[0]", f"Invalid value: {requested}: may not change once set"
            )
        if requested and requested != "None" and self._taken.get(requested, key) != key:
            why = f"failed to allocate IP {requested}: provided IP is already allocated"
            raise invalid("Service", key[1], "spec.clusterIPs", f"Invalid value: {requested}: {why}")
        address = requested or self._free()
        families = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "clusterIPs": [address]}
        return {**service, "spec": {**families, **spec, "clusterIP": address}}

    def note(self, key: ObjectKey, old: Json | None, new: Json | None) -> None:
        """Take what was written: `new` None says that the Service is gone."""
        before, after = _address(old), _address(new)
        if before and before != after:
            self._taken.pop(before, None)
        if after and after != "None":
            self._taken[after] = key

    def _free(self) -> str:
        size = self.cidr.num_addresses
        for step in range(size):
            offset = (self._next + step) % size
            address = str(self.cidr[offset])
            if 0 < offset < size - 1 and address not in self._taken:
                self._next = offset + 1
                return address
        raise internal("failed to allocate a serviceIP: range is full")


def _address(service: Json | None) -> str:
    spec = (service or {}).get("spec")
    return str(spec.get("clusterIP") or "") if isinstance(spec, dict) else ""
