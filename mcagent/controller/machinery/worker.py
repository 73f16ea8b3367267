"""Reconciles one key: asks a reconciler what should be, compares with what is there, writes the difference.

Owns the order of the steps and what each failure means. When a key is reconciled again is the engine's matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from mcagent.controller.machinery.apply import Verb
from mcagent.controller.machinery.connection.connection import AwayError, LeaderConnection
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import DesiredObjects, Reconciler, Ref, View, Wanted, check_writes
from mcagent.controller.machinery.statistics import Statistics
from mcagent.controller.machinery.workqueue import Entry, WorkQueue
from mcagent.controller.machinery.writer import ConflictError, NotLeadingError, Writer
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.api.base import ApiObject
from mcagent.model.errors import SourceError
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

_WELL = ("changed", "unchanged", "not-leading")


class Worker:
    """Works on keys. Safe to use from many threads, for one key by one at a time.

    `views` are what each reconciler sees. `gate` tells whether a reconciler may be
    called, `permit` for how many seconds this replica may write.
    """

    def __init__(
        self,
        reconcilers: Mapping[str, Reconciler],
        *,
        client: Client,
        written: WrittenObjects,
        events: CurrentEvents,
        views: Mapping[str, View],
        connection: LeaderConnection | None,
        gate: Callable[[Reconciler], bool],
        permit: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._reconcilers, self._views = reconcilers, views
        self._client, self._written, self._connection = client, written, connection
        self._events = events
        self._gate, self._permit, self._clock = gate, permit, clock
        self.statistics = Statistics()
        self._refused: dict[Entry, frozenset[Ref]] = {}  # the objects of a key whose writes were refused

    def work(self, entry: Entry, queue: WorkQueue) -> bool:
        """Work on a key; return whether it went well, else it is tried again. A bug affects one key only."""
        well, error = attempt(lambda: self._work(entry, queue))
        if error is not None:
            log.error("%s: %s failed, which is a bug", *entry, exc_info=error)
            self.statistics.bug(entry[0])
        return bool(well)

    def _work(self, entry: Entry, queue: WorkQueue) -> bool:
        name, key = entry
        reconciler = self._reconcilers[name]
        epoch = self._epoch()
        if self._permit() <= 0 or not self._gate(reconciler):
            return True  # all keys are enqueued when that changes
        began = time.perf_counter()
        desired = reconciler.desired(key, self._views[name], self._clock())
        if self._epoch() != epoch:
            return True  # it was about another leader
        check_writes(reconciler, desired)
        self._events.remember(entry, frozenset(desired.events))
        result = self._carry_out(entry, queue, desired, epoch)
        self._forget(entry, keep=() if result in _WELL else desired.steps)
        if not self._gate(reconciler) or self._epoch() != epoch:
            # The leader went meanwhile, and with it what the engine knew of it: this came too late for that.
            self._events.remember(entry, frozenset())
            self._forget(entry, keep=())
        self.statistics.worked(name, result, time.perf_counter() - began)
        if desired.again is not None:
            queue.add_after(entry, desired.again)
        return result in _WELL

    def _epoch(self) -> int:
        """Return the epoch of the connection to the leader; 0 without one."""
        return self._connection.epoch if self._connection is not None else 0

    def _forget(self, entry: Entry, keep: Sequence[Wanted | Ref]) -> None:
        """Forget the refusals of a key, but for those of these steps: the other writes are no longer needed."""
        refused = self._refused.pop(entry, frozenset())
        needed = refused & {_ref_of(step) for step in keep} if refused else refused
        for ref in refused - needed:
            self._written.forget_failure(ref)
        if needed:
            self._refused[entry] = needed

    def _carry_out(self, entry: Entry, queue: WorkQueue, desired: DesiredObjects, epoch: int) -> str:
        """Write what is wanted, in order. Returns how it went, as metrics name it."""
        result, writer, failed = "unchanged", self._writer(epoch), False
        for step in desired.steps:
            ref, present, write = _ref_of(step), None, None
            try:
                present = writer.present(ref)
                if (write := writer.plan(step, present)) is None:
                    self._succeeded(entry, queue, step, epoch)
                    continue
                if (wait := self._written.wait(write, time.monotonic())) > 0:
                    queue.add_after(entry, wait)
                    if write.verb is Verb.STATUS:
                        continue  # a report, on which the later steps do not build
                    break
                for done in writer.carry_out(step, present, write):
                    if self._written.count(done, time.monotonic()):
                        log.warning("%s: %s keeps being reverted: writing it less often", entry[0], ref)
                    self.statistics.wrote(entry[0], done)
                    log.info("%s: %s %s", entry[0], done.verb, ref)
                result = "changed"
            except ConflictError as err:
                log.debug("%s", err)
                self._written.forget(ref)
                self._written.store(ref, err.present, present, epoch)
                return "conflict"
            except NotLeadingError:
                return "not-leading"
            except AwayError:
                return "away"
            except SourceError as err:
                self._written.forget(ref)
                self._refused[entry] = self._refused.get(entry, frozenset()) | {ref}
                if self._written.failed(ref, str(err)):
                    log.warning("%s: %s: %s", entry[0], ref, err)
                failed = True
                if write is None or write.verb is not Verb.STATUS or not _concerns_object(err):
                    break
                continue
            self._succeeded(entry, queue, step, epoch)
        return "failed" if failed else result

    def _writer(self, epoch: int) -> Writer:
        return Writer(
            self._client,
            self._connection,
            epoch,
            self._permit,
            statistics=self.statistics,
            written=self._written,
        )

    def write_last(self, steps: Sequence[Wanted]) -> None:
        """Write what follows the last key; what fails is only logged, because another replica finds it so."""
        writer = self._writer(self._epoch())
        for step in steps:
            try:
                self._write_last(writer, step, writer.present(step.ref))
            except SourceError as err:
                log.info("%s: not written before the end: %s", step.ref, err)

    def _write_last(self, writer: Writer, step: Wanted, present: ApiObject | None, attempts: int = 3) -> None:
        """Write an object, again if another writer was faster. Raises SourceError."""
        try:
            if (write := writer.plan(step, present)) is not None:
                writer.carry_out(step, present, write)
        except ConflictError as err:
            if attempts == 1:
                raise
            self._write_last(writer, step, err.present, attempts - 1)

    def _succeeded(self, entry: Entry, queue: WorkQueue, step: Wanted | Ref, epoch: int) -> None:
        if self._written.succeeded(_ref_of(step), epoch if isinstance(step, Wanted) else None):
            queue.add([entry])  # what reported the failure must go


def _concerns_object(err: SourceError) -> bool:
    """Tell whether the API server may accept other writes, which it refused for this object or kind."""
    return isinstance(err, ApiRefusalError) and err.code < 500 and err.code not in (401, 429)


def _ref_of(step: Wanted | Ref) -> Ref:
    return step if isinstance(step, Ref) else step.ref
