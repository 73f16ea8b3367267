"""Leader election among replicas by a Lease (coordination.k8s.io/v1), with client-go's rules.

Times written by others are never compared with our clock: what counts is when we saw the record change, by a clock
that never steps. A holder stops writing `renew_deadline` after the start of its last successful renewal, which is
before another replica may take the Lease over (`duration` after it saw that renewal, at the earliest). `Election`
is pure; `Elector` makes the requests, in a thread of its own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError
from mcagent.kube.source import RawObject, checked_object
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)
_JITTER = 1.2  # client-go's JitterFactor: of the wait between two tries to acquire


def _steady() -> float:
    """Return the time of a clock that never steps, and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """client-go's three numbers; seconds. Raises ValueError unless duration > renew_deadline > retry."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > _JITTER * self.retry > 0:
            raise ValueError("a lease needs duration > renew deadline > 1.2 * retry period > 0")


class Election:
    """What a replica knows of the Lease. Pure: it is given monotonic times, and wall-clock text to write."""

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        self.identity, self._timing = identity, timing
        self._record: tuple[object, ...] | None = None
        self.holder = ""  # of the Lease, as far as is known; "": none
        self._lasts = timing.duration
        self._seen = 0.0  # when the record was last seen to change
        self._renewed: float | None = None  # start of our last successful renewal

    def permit(self, now: float) -> float:
        """Return for how many seconds we may write; 0 or less: not at all."""
        return 0.0 if self._renewed is None else self._renewed + self._timing.renew_deadline - now

    def observe(self, lease: RawObject, now: float) -> None:
        """Learn what the API server has."""
        spec = lease.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        record = tuple(
            spec.get(key) for key in ("holderIdentity", "leaseDurationSeconds", "renewTime", "acquireTime")
        )
        if record != self._record:
            self._record, self._seen = record, now
        self.holder = str(spec.get("holderIdentity") or "")
        lasts = spec.get("leaseDurationSeconds")
        self._lasts = float(lasts) if isinstance(lasts, int) and 0 < lasts < 2**31 else self._timing.duration
        if self.holder != self.identity:
            self._renewed = None

    def may_take(self, now: float) -> bool:
        """Tell whether the Lease is ours, has no holder, or was not renewed for as long as it lasts."""
        return self.holder in ("", self.identity) or now >= self._seen + self._lasts

    def record(self, present: RawObject | None, wall: str) -> RawObject:
        """Return the spec that makes us the holder."""
        spec = (present or {}).get("spec")
        spec = dict(spec) if isinstance(spec, dict) else {}
        is_holder = spec.get("holderIdentity") == self.identity
        transitions = spec.get("leaseTransitions")
        transitions = transitions if isinstance(transitions, int) else 0
        return {
            **spec,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "renewTime": wall,
            "acquireTime": spec.get("acquireTime", wall) if is_holder else wall,
            "leaseTransitions": transitions if is_holder or present is None else transitions + 1,
        }

    def took(self, began: float) -> None:
        """Count from a successful renewal, by the time at which it began."""
        self._renewed = began

    def lost(self) -> None:
        """Stop writing: the Lease is no longer ours, or we let it go."""
        self._renewed = None


class Elector(BackgroundLoop):
    """Keeps trying to hold the Lease `namespace`/`name`, until stopped. Safe to use from many threads.

    `gained` and `lost` are called from its thread. `permit` is right at any time, whatever the thread is doing.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        gained: Callable[[], None],
        lost: Callable[[], None],
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = _steady,
    ) -> None:
        self._timing = timing or LeaseTiming()
        super().__init__(self._elect, name="lease", patience=self._timing.renew_deadline)
        self._client, self._namespace, self._name = client, namespace, name
        self._gained, self._lost, self._clock = gained, lost, clock
        self._election = Election(identity, self._timing)
        self._lock = threading.Lock()
        self._lease: RawObject | None = None  # as it was after our last write
        self._leading = False
        self.error = ""  # why the Lease could not be read or written last time

    # --- any thread ---------------------------------------------------------------------------------------

    @property
    def holder(self) -> str:
        """Return the identity of who holds the Lease, as far as is known."""
        return self._election.holder

    def permit(self) -> float:
        """Return for how many seconds from now this replica may write; 0 or less: not at all."""
        with self._lock:
            return self._election.permit(self._clock())

    def stop(self) -> None:
        """Stop trying; nothing may be written any more. `release` lets another replica go on at once."""
        super().stop()
        with self._lock:
            self._election.lost()

    def release(self) -> None:
        """After `stop`, and when no write is under way: give the Lease up, so that others need not wait."""
        if self.alive or self._lease is None or not self._leading:
            return
        spec = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _wall()}
        try:
            self._put(self._lease, spec, timeout=2.0)
            log.info("lease %s/%s: released", self._namespace, self._name)
        except SourceError as err:
            log.warning("lease %s/%s: not released: %s", self._namespace, self._name, err)
        self._lease, self._leading = None, False

    # --- the thread ---------------------------------------------------------------------------------------

    def _elect(self) -> float:
        """Try once; return the seconds to the next try."""
        self._try()
        self._conclude()
        wait = self._timing.retry
        if self._leading:
            # Never sleep over the deadline: what depends on us has to hear of the loss.
            return max(0.01, min(wait, self.permit()))
        return wait * random.uniform(1.0, _JITTER)  # noqa: S311 (spreads load)

    def _conclude(self) -> None:
        """Call `gained` or `lost` if the role changed."""
        leading = self.permit() > 0
        if leading == self._leading:
            return
        self._leading = leading
        if leading:
            log.info("lease %s/%s: held by this replica", self._namespace, self._name)
            self._gained()
        else:
            with self._lock:
                self._election.lost()
            log.warning(
                "lease %s/%s: lost: %s", self._namespace, self._name, self.error or "taken by another replica"
            )
            self._lost()

    def _try(self) -> None:
        """Acquire or renew once."""
        began = self._clock()
        # A request must not outlive the deadline that it is to move.
        timeout = max(0.1, min(self._timing.renew_deadline / 2, self.permit() if self._leading else 5.0))
        try:
            present = self._lease if self._leading else None
            if present is None:
                present = self._read(timeout)
                self._lease = None
                if present is not None:
                    with self._lock:
                        self._election.observe(present, self._clock())
                        if not self._election.may_take(self._clock()):
                            self.error = ""
                            return
            spec = self._election.record(present, _wall())
            began = self._clock() if not self._leading else began
            written = self._create(spec, timeout) if present is None else self._put(present, spec, timeout)
        except ApiRefusalError as err:
            self._lease = None
            if err.code == 409:
                self._reread(timeout)
                return
            self.error = str(err)
            return
        except SourceError as err:
            self.error = str(err)
            return
        with self._lock:
            if self._election.permit(self._clock()) <= 0:
                self._leading = False  # what came since the deadline was dropped: `gained` has it enqueued
            self._lease, self.error = written, ""
            self._election.observe(written, self._clock())
            self._election.took(began)

    def _reread(self, timeout: float) -> None:
        """Read which replica was faster. A holder that another one overwrote is no holder any more."""
        try:
            present = self._read(timeout)
        except SourceError as err:
            self.error = str(err)
            return
        if present is not None:
            with self._lock:
                self._election.observe(present, self._clock())
                if self._election.holder == self._election.identity:
                    self._lease = present  # only its metadata was changed

    def _read(self, timeout: float) -> RawObject | None:
        answer = self._client.find(self._path(self._name), timeout=timeout)
        return None if answer is None else self._checked(answer)

    def _create(self, spec: RawObject, timeout: float) -> RawObject:
        body = {
            "apiVersion": KINDS[Kind.LEASE].api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return self._checked(self._client.request("POST", self._path(""), body=body, timeout=timeout))

    def _put(self, present: RawObject, spec: RawObject, timeout: float) -> RawObject:
        body = {**present, "spec": spec}
        return self._checked(self._client.request("PUT", self._path(self._name), body=body, timeout=timeout))

    def _path(self, name: str) -> str:
        return object_path(Kind.LEASE, self._namespace, name)

    def _checked(self, answer: object) -> RawObject:
        lease = checked_object(answer, Kind.LEASE, self._client.server)
        if not isinstance(lease.setdefault("spec", {}), dict):  # one from a manifest may have none
            raise ApiGarbageError(f"{self._client.server}: the Lease has no usable spec")
        return lease


def _wall() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
