"""ClusterIPs: allocated from the Service CIDR and given back. Called with the store's lock held."""

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

    def assign(self, key: ObjectKey, service: Json, old: Json | None) -> Json:
        """Return a Service with its address, allocated if it asks for none. Raises ApiError 422, 500."""
        spec = service.get("spec")
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            return service
        address = spec.get("clusterIP") or _address(old) or self._free()
        if address != "None" and self._taken.get(address, key) != key:
            why = f"Invalid value: {address}: failed to allocate IP {address}: provided IP is already allocated"
            raise invalid("Service", key[1], "spec.clusterIPs", why)
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
