"""Who may get a page: the API server says whose a token is (TokenReview) and what they may (SubjectAccessReview).

As in controller-runtime's filter for metrics. Answers are kept for a short time, so that a scrape costs the API
server nothing and its absence does not end monitoring at once. Guesses cost it little: the number of reviews is
limited for each source and in all, and answers about refused tokens never displace those about good ones. Tokens
are kept as digests only.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from mcagent.model.errors import SourceError

log = logging.getLogger(__name__)

OK, UNKNOWN, FORBIDDEN, TOO_MANY, AWAY = 200, 401, 403, 429, 503  # HTTP status of what is decided
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,8192}")  # RFC 6750, 2.1
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105
_TURN = 0.25  # seconds
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """How long answers count, in seconds, and how many reviews there may be."""

    good_for: float = 60.0
    bad_for: float = 10.0
    away_for: float = 300.0  # what was good goes on being good for so long while the API server does not answer
    kept: int = 256  # good answers; as many again of bad ones
    at_once: int = 4
    per_second: float = 10.0  # of tokens that are not known to be good
    per_source: float = 1.0
    burst: int = 5  # of each source; four times as many in all
    timeout: float = 5.0


_Key = tuple[bytes, str, str]  # a token's digest, a path, a verb
_Value = TypeVar("_Value")


class _Kept(NamedTuple):
    status: int
    at: float


def _put(kept: OrderedDict[Any, _Value], key: Any, value: _Value, most: int) -> None:
    """Keep a value; what was put longest ago is forgotten."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


class _Bucket:
    """So many at once, and so many a second."""

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst, self._rate, self._left, self._at = burst, rate, burst, now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Reviewer:
    """Decides over (token, path, source, verb), as an HTTP status. For any thread. `request`: a `Client`'s."""

    def __init__(
        self,
        request: Callable[..., Any],
        limits: ReviewLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._limits, self._clock = request, limits or ReviewLimits(), clock
        self._lock = threading.Lock()
        self._good: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bad: OrderedDict[_Key, _Kept] = OrderedDict()
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(4.0 * self._limits.burst, self._limits.per_second, clock())
        self._at_once = threading.BoundedSemaphore(self._limits.at_once)
        self._error = ""

    def __call__(self, token: str, path: str, source: str, verb: str = "get") -> int:
        """Return 200, or the status of the refusal: 401, 403, 429 (too many guesses), 503 (no API server)."""
        if _TOKEN.fullmatch(token) is None:
            return UNKNOWN
        key = (hashlib.sha256(token.encode()).digest(), path, verb)
        status = self._fresh(key)
        if status is not None:
            return status
        if not self._may_ask(key, source):
            return TOO_MANY
        # Who is not known yet does not wait for long: a connection that waits has a slot of the server.
        if not self._at_once.acquire(timeout=self._limits.timeout if self._known(key) else _TURN):
            return self._while_away(key)
        try:
            status = self._fresh(key)  # another thread may have asked meanwhile
            return self._ask(token, key) if status is None else status
        finally:
            self._at_once.release()

    def _fresh(self, key: _Key) -> int | None:
        now = self._clock()
        with self._lock:
            good, bad = self._good.get(key), self._bad.get(key)
        if good is not None and now - good.at < self._limits.good_for:
            return good.status
        return bad.status if bad is not None and now - bad.at < self._limits.bad_for else None

    def _known(self, key: _Key) -> bool:
        with self._lock:
            return key in self._good

    def _may_ask(self, key: _Key, source: str) -> bool:
        """Tell whether a review may be made: always for who was known to be good, else within limits."""
        if self._known(key):
            return True
        now = self._clock()
        with self._lock:
            bucket = self._sources.get(source) or _Bucket(self._limits.burst, self._limits.per_source, now)
            _put(self._sources, source, bucket, self._limits.kept)
            return bucket.take(now) and self._all.take(now)

    def _ask(self, token: str, key: _Key) -> int:
        try:
            status = self._review(token, *key[1:])
        except SourceError as error:
            if str(error) != self._error:
                log.warning("tokens cannot be reviewed: %s", error)
            self._error = str(error)
            return self._while_away(key)
        self._error = ""
        with self._lock:
            statuses, opposite = (self._good, self._bad) if status == OK else (self._bad, self._good)
            _put(statuses, key, _Kept(status, self._clock()), self._limits.kept)
            opposite.pop(key, None)
        return status

    def _while_away(self, key: _Key) -> int:
        with self._lock:
            good = self._good.get(key)
        if good is not None and self._clock() - good.at < self._limits.good_for + self._limits.away_for:
            return good.status
        return AWAY

    def _review(self, token: str, path: str, verb: str) -> int:
        """Ask the API server. Raises SourceError."""
        status = self._post(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return UNKNOWN
        review_spec = {"user": user["username"], "nonResourceAttributes": {"path": path, "verb": verb}}
        review_spec |= {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
        status = self._post(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", review_spec)
        return OK if status.get("allowed") is True and status.get("denied") is not True else FORBIDDEN

    def _post(self, path: str, api_version: str, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": api_version, "kind": kind, "spec": spec}
        answer = self._request("POST", path, body=body, timeout=self._limits.timeout)
        with suppress(AttributeError):
            if isinstance(status := answer.get("status"), dict):
                return status
        raise SourceError(f"{kind}: the answer has no status")
