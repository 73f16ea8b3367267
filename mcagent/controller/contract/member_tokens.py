"""Tokens of members that expire: what a token says of itself, the Secret to which it is bound, when it is renewed.

Pure. `mcagent membertoken create` creates a Secret without data on the leader, the anchor, and tokens of the
member's account that are bound to it: who deletes the anchor revokes them all. The anchor's name has the account,
the longest life of a token in seconds, and a random part, so that a token of an anchor that was deleted, which an
API server believes for ten more seconds, gets no token of the next one. The admission policy
`membertokens.mcagent.io` reads the name by the same rule. Claims are those of Kubernetes' tokens (Kubernetes,
"Managing Service Accounts", "Bound service account tokens"). They are not verified here: the leader does that.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from mcagent.model.parsing.document import decode

LONGEST = 64 * 1024  # characters of a token
RENEWED_AFTER = 2 / 3  # of a token's life
RANDOM = 20  # characters of an anchor's name: 100 bits
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX = re.compile(r"([1-9][0-9]{2,8})\.[a-z0-9]{20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    """What a token of a ServiceAccount says of itself. Times: seconds since the epoch, by the leader's clock."""

    issued: float
    expires: float
    namespace: str
    account: str
    anchor: str = ""  # the Secret to which it is bound; "": none, or one that `mcagent membertoken` did not create

    @property
    def renewal(self) -> float:
        """When a new token is due: after two thirds of the life."""
        return self.issued + (self.expires - self.issued) * RENEWED_AFTER

    @property
    def late(self) -> float:
        """When the lack of a new token is reported, whatever its reason: after five sixths of the life."""
        return self.issued + (self.expires - self.issued) * 5 / 6


def claims_of(token: str) -> TokenClaims | None:
    """Return the claims of a token with an end; None: it has none, as in Secrets that Kubernetes fills."""
    parts = token.split(".", 3)
    if len(token) > LONGEST or len(parts) != 3:
        return None
    try:
        claims = decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    if not isinstance(claims, dict):
        return None
    issued, expires, bound = _time(claims.get("iat")), _time(claims.get("exp")), claims.get("kubernetes.io")
    if issued is None or expires is None or expires <= issued or not isinstance(bound, dict):
        return None
    namespace, account = bound.get("namespace"), _name(bound.get("serviceaccount"))
    if not isinstance(namespace, str) or not account:
        return None
    anchor = _name(bound.get("secret"))
    is_anchor = longest_life(account, anchor) is not None
    return TokenClaims(
        issued=issued,
        expires=expires,
        namespace=namespace,
        account=account,
        anchor=anchor if is_anchor else "",
    )


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11:
        return float(value)
    return None


def _name(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def anchor_name(account: str, seconds: int, random: str) -> str:
    """Return the name of an anchor. `random`: RANDOM characters of ALPHABET."""
    return f"{account}.{seconds}.{random}"


def longest_life(account: str, secret: str) -> int | None:
    """Return for how many seconds tokens of an anchor live at most; None: it is no anchor of the account."""
    prefix = f"{account}."
    suffix = _SUFFIX.fullmatch(secret[len(prefix) :]) if secret.startswith(prefix) else None
    return int(suffix[1]) if suffix is not None else None


def token_request(anchor: str, seconds: int) -> dict[str, object]:
    """Return the TokenRequest for a token that is bound to an anchor."""
    bound = {"apiVersion": "v1", "kind": "Secret", "name": anchor}
    spec = {"expirationSeconds": seconds, "boundObjectRef": bound}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
