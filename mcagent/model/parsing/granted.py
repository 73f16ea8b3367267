"""When the leader granted each claim of a cluster: the annotation by which it tells the members.

Owns the annotation's form. The leader writes it on the ResourceImport of a ClusterInfo, the member's controller
copies it onto the ClusterInfoImport, agents read it. Who wins by it is the business of
`mcagent.core.addresses.ownership`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import describe, printable

# JSON object. Key: a claim in its one form (a CIDR without host bits, "10.96.0.0/16"; a gateway's address, both as
# RFC 5952 writes them; a WireGuard public key in base64). Value: RFC 3339, UTC, to the microsecond, so that texts
# sort; or REFUSED.
CLAIMS_ANNOTATION = "mcagent.io/claims"
REFUSED = ""  # asked for, and not granted: so it is not in the spec
MAX_CLAIMS = 4096  # CIDRs, gateways and keys of one cluster: more than an object that we read can hold

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


def granted_text(claims: Mapping[str, str]) -> str:
    """Return the annotation's value: the same for equal claims."""
    return json.dumps(dict(claims), sort_keys=True, separators=(",", ":"))


def read_granted(text: str) -> dict[str, str]:
    """Return the claims with their times (or REFUSED); ValueError says in a few words what is wrong."""
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


def to_microseconds(time: str) -> str:
    """Return an RFC 3339 time in UTC ("…Z") to the microsecond, so that it sorts among others; "" stays."""
    if not time:
        return time
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return f"{whole}.{fraction:0<6}Z"


def at(moment: datetime) -> str:
    """Return a moment as the annotation says it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
