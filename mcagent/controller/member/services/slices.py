"""The EndpointSlices of an imported Service. Pure, and the same whatever was there before.

Endpoints that serve the same ports are sorted by a hash of their address and cut where the hash itself says so, in
slices of about 64: a change of one endpoint changes one slice (or joins two, or cuts one in two), however many
there are. Nothing has to be remembered for that: every controller cuts alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.services import Ports
from mcagent.kube.source import RawObject

WHOLE = 100  # so many endpoints are one slice in any case
CUT = 64  # one in so many hashes begins a slice
MOST = 1000  # what the API takes


def slices(service: str, subsets: Mapping[Ports, Sequence[str]]) -> dict[str, RawObject]:
    """Return the slices of a Service by name. `subsets` are IPv4 addresses, each once, by the ports they serve."""
    found: dict[str, RawObject] = {}
    for ports, addresses in sorted(subsets.items()):
        group = _digest("|".join(f"{name}/{protocol}/{port}" for name, protocol, port in ports))[:8]
        for mark, members in _cut(addresses):
            name = f"{service}-{group}" + (f"-{mark}" if mark else "")
            found[name] = _slice(service, ports, members)
    return found


def _slice(service: str, ports: Ports, addresses: Iterable[str]) -> RawObject:
    labels = {names.SERVICE_NAME_LABEL: service, names.SLICE_MANAGED_BY_LABEL: names.SLICE_MANAGED_BY}
    return {
        "metadata": {"labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [text], "conditions": {"ready": True}} for text in addresses],
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, protocol, port in ports],
    }


def _cut(addresses: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the chunks, each with what names it: the hash of its first address, "" for what comes first."""
    if len(addresses) <= WHOLE:
        if addresses:
            yield "", sorted(addresses)
        return
    mark, members = "", list[str]()
    for digest, text in sorted((_digest(text), text) for text in addresses):
        if members and (int(digest[-4:], 16) % CUT == 0 or len(members) == MOST):
            yield mark, sorted(members)
            mark, members = digest[:10], []
        members.append(text)
    yield mark, sorted(members)


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=10).hexdigest()
