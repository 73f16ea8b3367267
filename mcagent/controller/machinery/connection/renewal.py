"""Renews the token of the leader: a TokenRequest there, then the Secret of this cluster. For one thread.

Only a token that says that it expires, and to which anchor it is bound, is renewed (`contract.member_tokens`), and
only by the replica that may write. The Secret is read again before it is written, and is written only while it
holds the token that was renewed: a token of an administrator is not written over. No message has a token.
"""

from __future__ import annotations

import base64
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mcagent.controller.contract.commands import let_write_token
from mcagent.controller.contract.member_tokens import TokenClaims, claims_of, longest_life, token_request
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalTiming:
    """When a renewal is tried again, and how long one request takes at most. Seconds."""

    retry: Backoff = field(default_factory=lambda: Backoff(first=60.0, most=3600.0))
    timeout: float = 10.0


def is_due(claims: TokenClaims | None, now: float) -> bool:
    """Tell whether a token is to be renewed. `now`: seconds since the epoch."""
    return claims is not None and bool(claims.anchor) and claims.renewal <= now < claims.expires


class TokenRenewal:
    """The renewal of one token. `permit` returns for how many seconds this replica may write."""

    def __init__(
        self,
        local: Client,
        namespace: str,
        permit: Callable[[], float],
        clock: Callable[[], float],
        timing: RenewalTiming,
    ) -> None:
        self._local, self._namespace, self._permit = local, namespace, permit
        self._clock, self._timing = clock, timing
        self._token = ""
        self.claims: TokenClaims | None = None  # of the present token; None: it does not expire
        self.error = ""  # why the last attempt failed
        self._failures = 0
        self._next = 0.0  # monotonic: no attempt before

    def use(self, token: str) -> None:
        """Take notice of the present token; "": there is none."""
        if token != self._token:
            self._token, self.claims = token, claims_of(token)
            if self.error:
                self._next = 0.0  # what failed was the renewal of another token
            self.error, self._failures = "", 0

    def step(self, client: Client, secret: str) -> None:
        """Renew the token if it is due. `client` is of the leader. Raises nothing; `error` has the reason."""
        now = time.monotonic()
        if (
            self.claims is None
            or now < self._next
            or not is_due(self.claims, self._clock())
            or self._permit() <= 0
        ):
            return
        try:
            self._renew(client, secret, self.claims)
        except SourceError as err:
            self._failures += 1
            self._next = now + self._timing.retry.delay(self._failures, random.random())  # noqa: S311 (spreads load)
            self.error = self._words(err, secret)
            log.warning("the token of the leader is not renewed: %s", self.error)
        else:
            # With a clock that is ahead of the leader's, every token looks due: it is not renewed more often.
            self._next = now + max(self._timing.retry.first, (self.claims.expires - self.claims.issued) / 3)
            self.error = ""

    def _renew(self, client: Client, secret: str, claims: TokenClaims) -> None:
        path = object_path(Kind.SECRET, self._namespace, secret)
        present = self._local.request("GET", path, timeout=self._timing.timeout)
        if not self._holds_token(present):
            return  # another token, of which the watch will tell
        account = object_path(Kind.SERVICE_ACCOUNT, claims.namespace, claims.account)
        body = token_request(claims.anchor, longest_life(claims.account, claims.anchor) or 0)
        answer = client.request("POST", f"{account}/token", body=body, timeout=self._timing.timeout)
        token = (answer.get("status") or {}).get("token") if isinstance(answer, dict) else None
        renewed = claims_of(token) if isinstance(token, str) else None
        if not isinstance(token, str) or renewed is None or renewed.anchor != claims.anchor:
            raise ApiGarbageError(
                f"{client.server}: the answer to a TokenRequest has no token bound to its Secret"
            )
        data = {**present["data"], "token": base64.b64encode(token.encode()).decode()}
        self._local.request("PUT", path, body={**present, "data": data}, timeout=self._timing.timeout)
        log.info("the token of the leader is renewed: Secret %s/%s", self._namespace, secret)

    def _holds_token(self, secret: object) -> bool:
        data = secret.get("data") if isinstance(secret, Mapping) else None
        value = data.get("token") if isinstance(data, Mapping) else None
        try:
            return isinstance(value, str) and base64.b64decode(value).decode().strip() == self._token
        except ValueError:
            return False

    def _words(self, err: SourceError, secret: str) -> str:
        """Return the error, with the command that grants a missing right of this cluster's controller."""
        own = isinstance(err, ApiRefusalError) and err.code == 403 and str(err).startswith(self._local.server)
        return f"{err}: {let_write_token(self._namespace, secret)}" if own else str(err)
