"""ClusterIPs: allocated from the Service CIDR, kept apart, given back. Called with the store's lock held.

The real server's words of a refusal depend on its version. With ServiceCIDR objects (1.33 and later) it says
that "the provided network does not match the current range"; before, that "The range of valid IPs is CIDR".
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, ip_address

from devtools.apiserver.errors import Cause, Json, internal, invalid_all
from devtools.apiserver.storage.history import ObjectKey

_TRIES = 100  # random addresses, before all are looked through


class ServiceAddresses:
    """Which ClusterIP belongs to which Service. `legacy`: as servers without ServiceCIDR objects have it."""

    def __init__(self, cidr: IPv4Network, *, legacy: bool = False) -> None:
        self.legacy = legacy
        self._first = cidr
        self._taken: dict[IPv4Address, ObjectKey] = {}
        self._ranges: dict[str, tuple[IPv4Network, ...]] = {"kubernetes": (cidr,)}

    @property
    def api_address(self) -> str:
        """Return the ClusterIP of the Service `kubernetes`."""
        return str(self._first[1])

    @property
    def cidr(self) -> str:
        """Return the Service CIDR that the server was started with."""
        return str(self._first)

    def note_range(self, obj: Json, *, gone: bool) -> None:
        """Take a change of a ServiceCIDR object. Raises ApiError 422 for what is no CIDR."""
        name = obj["metadata"]["name"]
        cidrs = (obj.get("spec") or {}).get("cidrs") or ()
        try:
            found = tuple(IPv4Network(cidr) for cidr in cidrs if ":" not in cidr)
        except (ValueError, TypeError):
            cause = Cause("spec.cidrs[0]", f"Invalid value: {json.dumps(cidrs)}: must be a valid CIDR value")
            raise invalid_all("ServiceCIDR.networking.k8s.io", name, [cause]) from None
        self._ranges.pop(name, None)
        if not gone:
            self._ranges[name] = found

    def assign(self, key: ObjectKey, service: Json, old: Json | None) -> Json:
        """Return a Service with its address, allocated if it asks for none. Raises ApiError 422."""
        spec = service["spec"]
        if spec.get("type") == "ExternalName":
            return service
        kept = (old or {}).get("spec", {}).get("clusterIP")
        if old is not None and kept and not spec.get("clusterIP"):
            spec = {**spec, "clusterIP": kept, "clusterIPs": [kept]}
        wanted = spec.get("clusterIP")
        if old is not None and kept and wanted != kept and old["spec"].get("type") != "ExternalName":
            why = f"Invalid value: {json.dumps([wanted])}: may not change once set"
            raise invalid_all("Service", key[1], [Cause("spec.clusterIPs[0]", why)])
        if wanted == "None" or (wanted and wanted == kept):
            pass
        elif wanted:
            self._claim(key, wanted)
        else:
            wanted = str(self._free())
        families = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
        return {**service, "spec": {**families, **spec, "clusterIP": wanted, "clusterIPs": [wanted]}}

    def note(self, key: ObjectKey, old: Json | None, new: Json | None) -> None:
        """Take what was written: `new` None says that the Service is gone."""
        before, after = (_address(obj) for obj in (old, new))
        if before is not None and before != after and self._taken.get(before) == key:
            del self._taken[before]
        if after is not None:
            self._taken[after] = key

    def _claim(self, key: ObjectKey, wanted: str) -> None:
        try:
            address = ip_address(wanted)
        except ValueError:
            why = f'Invalid value: "{wanted}": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
            raise invalid_all("Service", key[1], [Cause("spec.clusterIPs[0]", why)]) from None
        why = ""
        if not any(address in network for network in self._networks()):
            why = "the provided network does not match the current range"
            if self.legacy:
                why = f"the provided IP ({wanted}) is not in the valid range. "
                why += f"The range of valid IPs is {self._first}"
        elif address in self._taken:
            why = "provided IP is already allocated"
        if why:
            told = f'Invalid value: ["{wanted}"]: failed to allocate IP {wanted}: {why}'
            raise invalid_all("Service", key[1], [Cause("spec.clusterIPs", told)])

    def _networks(self) -> Iterator[IPv4Network]:
        for networks in self._ranges.values():
            yield from networks

    def _free(self) -> IPv4Address:
        networks = [network for network in self._networks() if network.num_addresses > 2]
        for _ in range(_TRIES if networks else 0):
            network = secrets.choice(networks)
            address = network[1 + secrets.randbelow(network.num_addresses - 2)]
            if address not in self._taken:
                return address
        for network in networks:
            for address in network.hosts():
                if address not in self._taken:
                    return address
        raise internal("failed to allocate a serviceIP: range is full")


def _address(service: Json | None) -> IPv4Address | None:
    try:
        return IPv4Address((service or {}).get("spec", {}).get("clusterIP") or "")
    except ValueError:
        return None
