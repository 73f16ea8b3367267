"""Annotations about claims: when the leader granted each, and which CIDRs a cluster does not use.

Owns the form of the annotations. The leader writes the times on the ResourceImport of a ClusterInfo, the member's
controller copies them onto the ClusterInfoImport, agents read them. Who wins by them is the business of
`mcagent.core.addresses.ownership`. The Pod CIDRs that a cluster does not use go from its Gateways' status onto its
ClusterInfo, and reach the clusters that published them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from mcagent.model.net import Network, network_key, parse_network
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import describe, printable

# JSON object. Key: a claim in its one form (a CIDR without host bits, "10.96.0.0/16"; a gateway's address, both as
# RFC 5952 writes them; a WireGuard public key in base64). Value: RFC 3339, UTC, to the microsecond, so that texts
# sort; or REFUSED.
CLAIMS_ANNOTATION = "mcagent.io/claims"
REFUSED = ""  # asked for, and not granted: so it is not in the spec
MAX_CLAIMS = 4096  # CIDRs, gateways and keys of one cluster: more than an object that we read can hold
MAX_TEXT = 256 * 1024  # characters of the annotation: all that an object's annotations may have together

# Comma-separated claims on a ClusterInfoImport. The first: what the member's controller left out of the spec. The
# second: Pod CIDRs of the member's own cluster that the other cluster, or the leader, does not use.
PROTECTED_ANNOTATION = "mcagent.io/protected-claims"
REFUSED_PODS_ANNOTATION = "mcagent.io/refused-pod-cidrs"
# JSON object on a ClusterInfo: for each other cluster, the Pod CIDRs of it that this cluster does not use.
REFUSED_ANNOTATION = "mcagent.io/refused-claims"
MAX_REFUSED = 16  # Pod CIDRs of one cluster that are reported as not used
_MAX_REFUSED_TEXT = 16 * 1024  # characters

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


def granted_text(claims: Mapping[str, str]) -> str:
    """Return the annotation's value: the same for equal claims."""
    return json.dumps(dict(claims), sort_keys=True, separators=(",", ":"))


def read_granted(text: str) -> dict[str, str]:
    """Return the claims with their times (or REFUSED); ValueError says in a few words what is wrong."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text)} characters, at most {MAX_TEXT} allowed")
    try:
        claims = decode(text)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(claims, dict):
        raise ValueError(f"must be a JSON object, is {describe(claims)}")
    if len(claims) > MAX_CLAIMS:
        raise ValueError(f"has {len(claims)} claims, at most {MAX_CLAIMS} allowed")
    for claim, time in claims.items():
        if not isinstance(time, str) or (time != REFUSED and not _TIME.fullmatch(time)):
            raise ValueError(f'not a time (RFC 3339, in UTC) for claim "{printable(claim)}"')
    return {claim: to_microseconds(time) for claim, time in claims.items()}


def claims_text(claims: Iterable[str]) -> str | None:
    """Return claims as a comma-separated annotation; None (no annotation) if there are none."""
    return ",".join(sorted(set(claims))) or None


def read_cidrs(text: str) -> tuple[Network, ...]:
    """Return the CIDRs among the claims of a comma-separated annotation, sorted."""
    return tuple(
        sorted((parse_network(claim)[0] for claim in text.split(",") if _is_cidr(claim)), key=network_key)
    )


def refused_text(refused: Mapping[str, Iterable[str]]) -> str | None:
    """Return the value of REFUSED_ANNOTATION for CIDRs by cluster ID; None (no annotation) if there are none.

    Clusters that do not fit into the annotation are left out.
    """
    reported: dict[str, list[str]] = {}
    length = 0
    for cluster_id, cidrs in sorted(refused.items()):
        first_cidrs = sorted(set(cidrs))[:MAX_REFUSED]
        length += len(cluster_id) + sum(len(cidr) + 3 for cidr in first_cidrs) + 6
        if first_cidrs and length <= _MAX_REFUSED_TEXT:
            reported[cluster_id] = first_cidrs
    return json.dumps(reported, separators=(",", ":")) if reported else None


def read_refused(text: str) -> dict[str, tuple[str, ...]]:
    """Return the CIDRs of REFUSED_ANNOTATION by cluster ID. Invalid entries are left out; nothing is raised."""
    if not text or len(text) > _MAX_REFUSED_TEXT:
        return {}
    try:
        by_cluster = decode(text)
    except ValueError:
        return {}
    if not isinstance(by_cluster, dict):
        return {}
    return {
        cluster_id: tuple(cidr for cidr in cidrs[:MAX_REFUSED] if isinstance(cidr, str) and _is_cidr(cidr))
        for cluster_id, cidrs in by_cluster.items()
        if isinstance(cidrs, list)
    }


def _is_cidr(text: str) -> bool:
    try:
        parse_network(text)
    except ValueError:
        return False
    return True


def to_microseconds(time: str) -> str:
    """Return an RFC 3339 time in UTC ("…Z") to the microsecond, so that it sorts among others; "" stays."""
    if not time:
        return time
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return f"{whole}.{fraction:0<6}Z"


def at(moment: datetime) -> str:
    """Return a moment as the annotation says it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
