"""Export ranges: the CIDRs that clusters publish instead of their Service CIDRs, and the addresses in them. Pure.

Owns the annotations: what a member asks for, what its leader assigns, what the member uses, and which address an
exported Service has (docs/notes/export-ranges.md). Values that others wrote are checked; an invalid one is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

import msgspec

from mcagent.api.codec import convert
from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim
from mcagent.controller.contract.ranges import range_of
from mcagent.model.api.base import ApiObject
from mcagent.model.net import parse_network
from mcagent.model.parsing.clusters import SERVICE_CIDR_ANNOTATION

AUTO, ALWAYS, NEVER = "auto", "always", "never"  # values of `exportCIDR`, beside a CIDR
PREFIX = 20  # of ranges: 4,094 Services
LARGEST = 12  # the prefix of the largest Service CIDR that a kube-apiserver accepts
# Of a member's ClusterInfo ResourceExport: AUTO or ALWAYS, if the leader may assign a range. Of its
# ResourceImport: the leader's answer (Assigned). Of the member's ClusterSet: its range (UsedRange).
RANGE_ANNOTATION = "mcagent.io/export-range"
RANGES_ANNOTATION = "mcagent.io/export-ranges"  # of the leader's ClusterSet: Assigned by cluster ID
ADDRESS_ANNOTATION = "mcagent.io/export-address"  # of a Service's ResourceExport: its export address
_MAX_TEXT = 256 * 1024  # characters: annotations of an object have no more
_Record = TypeVar("_Record")


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's decision on a member. `why` without a `cidr`: why it gets no range that it needs."""

    service_cidr: str = msgspec.field(default="", name="serviceCIDR")  # for which it was made
    cidr: str = ""
    why: str = ""


class UsedRange(msgspec.Struct, frozen=True, kw_only=True):
    """The export range of a member. Without a `cidr` it publishes its Service CIDR; a `reason` then says why."""

    cidr: str = ""
    reason: str = ""
    why: str = ""


def service_cidr_of(obj: ApiObject) -> CidrClaim | None:
    """Return the real Service CIDR that a cluster reports; None if it reports none, or one that cannot be."""
    text = obj.annotation(SERVICE_CIDR_ANNOTATION) or ""
    claim = cidr_claim(text, "Service CIDR") if len(text) <= len("255.255.255.255/32") else None
    if claim is None or claim.range is None or parse_network(claim.text)[0].prefixlen < LARGEST:
        return None
    return claim


def mode_of(export: ApiObject) -> str:
    """Return AUTO or ALWAYS if a member lets the leader assign a range; else ""."""
    mode = export.annotation(RANGE_ANNOTATION)
    return mode if mode in (AUTO, ALWAYS) and service_cidr_of(export) is not None else ""


def read_assigned(resource_import: ApiObject) -> Assigned | None:
    """Return the leader's answer to a member; None if it has not answered, or assigns no ranges."""
    return _valid(read_record(resource_import.annotation(RANGE_ANNOTATION), Assigned))


def read_used(cluster_set: ApiObject) -> UsedRange | None:
    """Return the range in the annotation of a member's ClusterSet; None before the first decision."""
    return _valid(read_record(cluster_set.annotation(RANGE_ANNOTATION), UsedRange))


def read_ranges(cluster_set: ApiObject) -> Mapping[str, Assigned]:
    """Return the ranges in the annotation of a leader's ClusterSet, by cluster ID."""
    return parse_ranges(cluster_set.annotation(RANGES_ANNOTATION) or "")


@lru_cache(maxsize=8)
def parse_ranges(text: str) -> Mapping[str, Assigned]:
    """Return the ranges in the text of the annotation, by cluster ID."""
    ranges = read_record(text, dict[str, Assigned]) or {}
    return {cluster: assigned for cluster, assigned in ranges.items() if _valid(assigned) is not None}


def as_text(value: msgspec.Struct | Mapping[str, msgspec.Struct] | None) -> str | None:
    """Return the value of an annotation; None (no annotation) without a value."""
    return msgspec.json.encode(value, order="sorted").decode() if value else None


def read_record(text: str | None, cls: type[_Record]) -> _Record | None:
    """Return the record in the text of an annotation; None if it is invalid."""
    if not text or len(text) > _MAX_TEXT:
        return None
    try:
        return convert(cls, msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return None


_Range = TypeVar("_Range", Assigned, UsedRange)


def _valid(value: _Range | None) -> _Range | None:
    return None if value is None or (value.cidr and range_of(value.cidr) is None) else value


# --- first free ones ------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def slots(pool: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ranges of a pool of CIDRs, in its order; a CIDR smaller than a range is one."""
    networks = [IPv4Network(text) for text in pool]
    ranges = (slot for n in networks for slot in ([n] if n.prefixlen > PREFIX else n.subnets(new_prefix=PREFIX)))
    return tuple(map(str, ranges))


def first_slot(pool: Sequence[str], cluster: str, is_free: Callable[[str], bool]) -> str:
    """Return the first free range from the hash of a cluster ID; "" if none is free."""
    return next((pool[place] for place in places_from(cluster, len(pool)) if is_free(pool[place])), "")


def export_address(cidr: str, service: str, is_free: Callable[[str], bool]) -> str:
    """Return the first free address of a range from the hash of "namespace/name"; "" if none is free.

    The first address is Antrea's tunnel endpoint of the cluster; the last one is never used.
    """
    network = IPv4Network(cidr)
    candidates = (network[1 + place] for place in places_from(service, network.num_addresses - 2))
    return next((str(address) for address in candidates if is_free(str(address))), "")


def is_export_address(text: str, cidr: str) -> bool:
    """Tell whether a text is an address that a Service can have in a range."""
    try:
        address, network = IPv4Address(text), IPv4Network(cidr)
    except ValueError:
        return False
    return str(address) == text and network.network_address < address < network.broadcast_address


def places_from(name: str, count: int) -> Iterator[int]:
    """Yield all numbers below `count`, from the hash of a name on."""
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return ((start + step) % count for step in range(count))
