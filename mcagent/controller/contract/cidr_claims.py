"""CIDR claims: the CIDRs, gateway addresses and WireGuard keys that a ClusterInfo claims, and which collide.

Pure. It reads the claims of an object with a ClusterInfo, and has the index values by which the claims that
collide with one are found without reading all clusters. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec import structs

from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Index, Object, Side
from mcagent.core.addresses.rules import SHORTEST_PREFIX, PrefixRange, prefix_range, refuse_network
from mcagent.core.addresses.underlay import endpoint_of, refuse_underlay, source_of
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ClusterInfo, GatewayInfo, ResourceExport, ResourceImport, WireGuard
from mcagent.model.net import Address, address_or_none, network_or_none

MAX_CIDRS = 256  # Pod CIDRs of a cluster
MAX_GATEWAYS = 64
MOST_CIDRS = 1024  # CIDRs that are read: early versions allowed more than MAX_CIDRS
_LONGEST = 64  # characters of a CIDR, an address or a key
_KEY = 44  # characters of a WireGuard public key: base64 of 32 bytes


@dataclass(frozen=True, slots=True)
class CidrClaim:
    """One claim. `text` names it: a CIDR without host bits, an address, or a key in base64."""

    text: str
    range: PrefixRange | None  # None: a key
    gateway: bool = False
    points: tuple[PrefixRange, ...] = ()  # of a gateway: addresses that tunnels have by it, each a range of one
    what: str = field(default="", compare=False)  # "Service CIDR"

    def __str__(self) -> str:
        return f"{self.what} {self.text}"


@lru_cache(maxsize=16384)
def cidr_claim(text: str, what: str) -> CidrClaim | None:
    """Return the claim to a CIDR; None if the text is no CIDR, or one that cannot be routed."""
    network = network_or_none(text)
    if network is None or refuse_network(network) is not None:
        return None
    return CidrClaim(str(network), prefix_range(network), what=what)


@lru_cache(maxsize=16384)
def gateway_claim(text: str) -> CidrClaim | None:
    """Return the claim to a gateway's address; None if no tunnel can end there."""
    address = address_or_none(text)
    if address is None or "%" in text or refuse_underlay(address) is not None:
        return None
    points = {_point(endpoint_of(address)), _point(source_of(address))} - {_point(address)}
    return CidrClaim(str(address), _point(address), gateway=True, points=tuple(sorted(points)), what="gateway")


def _point(address: Address) -> PrefixRange:
    return (address.version, int(address), int(address))


def claims_of(info: ClusterInfo | None) -> tuple[CidrClaim, ...]:
    """Return the claims of an unchecked ClusterInfo, each once; invalid entries claim nothing.

    A ClusterInfo with too many entries claims nothing; their number is checked before any of them is read.
    """
    if info is None or len(info.pod_cidrs) > MOST_CIDRS or len(info.gateway_infos) > MAX_GATEWAYS:
        return ()
    claims = [cidr_claim(info.service_cidr, "Service CIDR")] if _short(info.service_cidr) else []
    claims += [cidr_claim(text, "Pod CIDR") for text in info.pod_cidrs if _short(text)]
    claims += _keys(info.wireguard)
    for gateway in info.gateway_infos:
        claims += [gateway_claim(gateway.gateway_ip)] if _short(gateway.gateway_ip) else []
        claims += _keys(gateway.wireguard)
    return tuple({claim.text: claim for claim in reversed(claims) if claim is not None}.values())[::-1]


def _keys(wireguard: WireGuard | None) -> list[CidrClaim | None]:
    keys = () if wireguard is None else (wireguard.public_key, wireguard.next_public_key)
    return [CidrClaim(key, None, what="WireGuard key") for key in keys if len(key) == _KEY]


def claims_in(raw: ApiObject | None) -> tuple[CidrClaim, ...]:
    """Return the claims of a ResourceExport or ResourceImport of kind ClusterInfo; none of anything else."""
    if not isinstance(raw, ResourceExport | ResourceImport) or raw.spec.kind != ExportKind.CLUSTER_INFO:
        return ()
    return claims_of(raw.spec.cluster_info)


def without(info: ClusterInfo, refused: Container[str]) -> ClusterInfo:
    """Return a ClusterInfo without the claims whose texts are in `refused`.

    A gateway whose key is refused is removed too, because without a key it would seem not to encrypt.
    """
    common = _granted_keys(info.wireguard, refused)
    gateways = []
    for gateway in info.gateway_infos:
        own = _granted_keys(gateway.wireguard, refused)
        key, granted = (gateway.wireguard, own) if gateway.wireguard is not None else (info.wireguard, common)
        if gateway.gateway_ip not in refused and not (key is not None and granted is None):
            gateways.append(GatewayInfo(gateway_ip=gateway.gateway_ip, wireguard=own))
    return ClusterInfo(
        cluster_id=info.cluster_id,
        service_cidr="" if info.service_cidr in refused else info.service_cidr,
        pod_cidrs=tuple(cidr for cidr in info.pod_cidrs if cidr not in refused),
        gateway_infos=tuple(gateways),
        wireguard=common,
    )


def _granted_keys(keys: WireGuard | None, refused: Container[str]) -> WireGuard | None:
    """Return the WireGuard fields without refused keys; None if the current key is refused."""
    if keys is None or keys.public_key in refused:
        return None
    following = "" if keys.next_public_key in refused else keys.next_public_key
    return structs.replace(keys, next_public_key=following)


def _short(text: str) -> bool:
    return 0 < len(text) <= _LONGEST


# --- collisions -------------------------------------------------------------------------------------------


def filed_under(claim: CidrClaim) -> Iterator[str]:
    """Yield the index values of a claim: itself, and all prefixes in which it lies.

    CIDRs are nested or disjoint, so two claims collide if and only if a value of `asked_for` of one is among
    these of the other.
    """
    yield from _itself(claim)
    for length in _around(claim):
        yield f"in {_prefix(claim, length)}"


def asked_for(claim: CidrClaim) -> Iterator[str]:
    """Yield the index values of the claims that collide with a claim: equal to it, around it, or inside it."""
    yield from _itself(claim)
    for length in _around(claim):
        yield _prefix(claim, length)
    if claim.range is not None and claim.range[0] == 4:
        yield f"in {_prefix(claim, _length(claim))}"


def collide(claim: CidrClaim, other: CidrClaim) -> bool:
    """Tell whether two claims of different clusters cannot both be granted."""
    a, b = claim.range, other.range
    if a is None or b is None:
        return claim.text == other.text and a is b
    return (a[0] == b[0] and a[1] <= b[2] and b[1] <= a[2]) or not set(claim.points).isdisjoint(other.points)


def pairs(owned: Iterable[tuple[str, CidrClaim]], most: int) -> list[tuple[str, CidrClaim, str, CidrClaim]]:
    """Return the pairs of claims of different owners that share an address, the first `most` in order of address.

    It reads the outermost of nested ranges first, so that the stack has all ranges around the current one.
    """
    overlaps: list[tuple[str, CidrClaim, str, CidrClaim]] = []
    around: list[tuple[str, CidrClaim, PrefixRange]] = []
    rows = [(owner, claim, claim.range) for owner, claim in owned if claim.range is not None]
    for owner, claim, row in sorted(rows, key=lambda r: (r[2][0], r[2][1], -r[2][2], r[0], r[1].text)):
        while around and (around[-1][2][0] != row[0] or around[-1][2][2] < row[1]):
            around.pop()
        for other_owner, other_claim, _ in around:
            if other_owner != owner:
                overlaps.append((other_owner, other_claim, owner, claim))
                if len(overlaps) == most:
                    return overlaps
        around.append((owner, claim, row))
    return overlaps


def _itself(claim: CidrClaim) -> Iterator[str]:
    if claim.range is None:
        yield claim.text
    else:
        yield f"{claim.range[1]:x}" if claim.range[0] == 6 else _prefix(claim, _length(claim))
    for version, first, _ in claim.points:
        yield f"point {version} {first:x}"


def _around(claim: CidrClaim) -> Iterable[int]:
    """Return the lengths of prefixes around a claim. CIDRs are IPv4 only, gateways may be IPv6."""
    return range(SHORTEST_PREFIX, _length(claim)) if claim.range is not None and claim.range[0] == 4 else ()


def _length(claim: CidrClaim) -> int:
    assert claim.range is not None
    return 33 - (claim.range[2] - claim.range[1] + 1).bit_length()


def _prefix(claim: CidrClaim, length: int) -> str:
    assert claim.range is not None
    return f"{claim.range[1] >> (32 - length)}/{length}"


def in_network(claim: CidrClaim, length: int) -> str | None:
    """Return the index value under which claims inside a network around a claim are filed; None if it has none."""
    return f"in {_prefix(claim, length)}" if length in _around(claim) else None


def place(area: str, value: str) -> str:
    """Return the index value of `value` in an area."""
    return f"{area} {value}"


def _filed(obj: ApiObject) -> Iterable[str]:
    return {place(obj.namespace, value) for claim in claims_in(obj) for value in filed_under(claim)}


def colliding(claims: Iterable[CidrClaim], area: str, indexed: Callable[[str], Iterable[Object]]) -> list[Object]:
    """Return the objects of an area with a claim that collides with one of these, each once, by name.

    `indexed` returns the objects of one of the indexes below for a value.
    """
    places = dict.fromkeys(place(area, value) for claim in claims for value in asked_for(claim))
    objects_by_name = {raw.name: raw for value in places for raw in indexed(value)}
    return [objects_by_name[name] for name in sorted(objects_by_name)]


# ClusterInfo exports on the leader, under the place of each `filed_under` of each claim.
CLAIMED = Index("exports-by-claim", ResourceExport, Side.LOCAL, _filed)
# ResourceImports of kind ClusterInfo on the leader, likewise.
GRANTED = Index("imports-by-claim", ResourceImport, Side.LOCAL, _filed)
# The same objects, as a member reads them.
IMPORTED = Index("leader-imports-by-claim", ResourceImport, Side.LEADER, _filed)
