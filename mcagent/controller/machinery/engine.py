"""Runs reconcilers by the rules of `reconciler`: informers fill the cache, changes become keys, workers reconcile.

Each side has a work queue and workers of its own, so a slow leader holds up nothing local. The engine decides only
when a key is reconciled; what is written follows from `desired` and `plan`. It writes only while `permit` says so
(the Lease); without it the caches are kept warm, keys are dropped, and all keys are enqueued once it is back.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import ConnectionTiming, LeaderConnection
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.informers import LocalInformers
from mcagent.controller.machinery.reconciler import (
    Leader,
    ObjectChange,
    Reconciler,
    Ref,
    Side,
    View,
    Wanted,
    side_of,
)
from mcagent.controller.machinery.resyncs import Resyncs
from mcagent.controller.machinery.view import DeclaredView, EngineView
from mcagent.controller.machinery.worker import Worker
from mcagent.controller.machinery.workqueue import KEYS, WorkQueue
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.kube.client import Client
from mcagent.kube.sources.informer import Timing
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.backoff import Backoff
from mcagent.model.event import Event
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from mcagent.supervised import Supervised, attempt

log = logging.getLogger(__name__)

PRUNE = 30.0  # seconds between two turns that forget what is outdated of the objects written


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTiming:
    """Numbers of the engine; seconds."""

    workers: int = 8  # of each side
    resync: float = 300.0
    spread: float = 30.0  # over which the keys of a resync are spread, at most
    look: float = 0.5  # between two turns of the supervisor, at most
    unconfirmed: float = 30.0  # after which an object that we made, and that no watch has shown, is forgotten
    stop: float = 12.0  # for what is under way; a little more than a write may take
    backoff: Backoff = KEYS
    informers: Timing = field(default_factory=Timing)
    connection: ConnectionTiming = field(default_factory=ConnectionTiming)


class Engine:
    """Runs reconcilers until stopped.

    `namespace` is that of the ClusterSet; "": all namespaces, on a leader. `home` is the namespace that the
    controller runs in. `member`: there is a leader to connect to. `also` are kinds of this cluster that other
    code reads from the cache. `permit` returns for how many seconds this replica may write. `record` takes the
    Events that there should be, whenever they change. `last` returns what is written when the engine stops.
    """

    def __init__(
        self,
        reconcilers: Sequence[Reconciler],
        client: Client,
        *,
        namespace: str,
        home: str = "",
        member: bool,
        also: Iterable[Kind] = (),
        permit: Callable[[], float] = lambda: float("inf"),
        record: Callable[[frozenset[Event]], None] = lambda _events: None,
        last: Callable[[View], Sequence[Wanted]] = lambda _view: (),
        timing: EngineTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Put it together; nothing is read yet. Raises ValueError for reconcilers that do not fit together."""
        self._reconcilers = {reconciler.name: reconciler for reconciler in reconcilers}
        if len(self._reconcilers) != len(reconcilers):
            raise ValueError("two reconcilers have one name")
        self._client, self._namespace, self._timing = client, namespace, timing or EngineTiming()
        self._permit, self._record, self._last, self._clock = permit, record, last, clock
        kinds = {Side.LOCAL: set(also), Side.LEADER: set[Kind]()}
        for reconciler in reconcilers:
            for side in Side:
                kinds[side] |= reconciler.reads.on(side)
        if member:
            kinds[Side.LOCAL] |= {Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM}
        self.cache = Cache(
            kinds, [index for reconciler in reconcilers for index in reconciler.indexes], self._changed
        )
        self.connection = (
            LeaderConnection(
                client,
                self.cache,
                namespace,
                self._leader_changed,
                permit=permit,
                timing=self._timing.connection,
                clock=clock,
            )
            if member
            else None
        )
        self.written = WrittenObjects(self.cache)
        self._events = CurrentEvents()
        self.view = EngineView(self.cache, namespace or home, self.connection, self.written, self._events)
        self._views = {r.name: DeclaredView(self.view, r) for r in reconcilers}
        self.worker = Worker(
            self._reconcilers,
            client=client,
            written=self.written,
            events=self._events,
            views=self._views,
            connection=self.connection,
            gate=self._gate,
            permit=permit,
            clock=clock,
        )
        most = max(1, self._timing.workers * 3 // 4)
        self._queues = {side: WorkQueue(self._timing.backoff, most=most) for side in Side}
        self._side_of = {reconciler.name: side_of(reconciler) for reconciler in reconcilers}
        self._local = LocalInformers(
            kinds[Side.LOCAL], client, self.cache, namespace=namespace, timing=self._timing.informers
        )
        self._stopping = threading.Event()
        self._resyncs = Resyncs()
        self._threads = [
            Supervised(self._work, args=(side,), name=f"worker-{side}-{number}", until=self._stopping)
            for side in self._sides()
            for number in range(self._timing.workers)
        ]
        self._threads.append(Supervised(self._supervise, name="engine", until=self._stopping))

    def _sides(self) -> Sequence[Side]:
        return list(Side) if self.connection is not None else [Side.LOCAL]

    # --- any thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read objects and to reconcile. Returns at once."""
        self._local.start()
        if self.connection is not None:
            self.connection.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """End: what is under way is finished, nothing is begun. Returns whether no write is under way any more."""
        self._stopping.set()
        self._resyncs.wake()
        for queue in self._queues.values():
            queue.close()
        deadline = time.monotonic() + self._timing.stop
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        finished = not any(thread.is_alive() for thread in self._threads)
        if finished and self._permit() > 0:
            self.worker.write_last(self._last(self.view))
        if self.connection is not None:
            self.connection.stop()
        self._local.stop()
        return finished

    def resume(self) -> None:
        """Write from now on: all keys are enqueued."""
        self._resyncs.request(self._reconcilers, urgent=True)

    def suspend(self) -> None:
        """Write no longer: forget the keys that wait."""
        for queue in self._queues.values():
            queue.clear()

    def idle(self) -> bool:
        """Tell whether everything is listed and nothing is to be done now (later there may be)."""
        usable = self._usable()
        return (
            all(name in usable or reconciler.needs_leader for name, reconciler in self._reconcilers.items())
            and all(self._resyncs.is_active(name, epoch) for name, epoch in usable.items())
            and self._resyncs.idle()
            and all(queue.idle() for queue in self._queues.values())
        )

    def dead(self) -> Sequence[str]:
        """Return the threads that should run and do not."""
        if self._stopping.is_set():
            return []
        dead = [thread.name for thread in self._threads if thread.ident and not thread.is_alive()]
        if self.connection is not None and not self.connection.alive:
            dead.append("leader-connection")
        return dead

    def informers(self) -> Mapping[Side, Sequence[InformerState]]:
        """Return how reading goes."""
        return {
            Side.LOCAL: self._local.state(),
            Side.LEADER: self.connection.state() if self.connection is not None else (),
        }

    def depths(self) -> Mapping[str, int]:
        """Return how many keys of each reconciler wait for a worker."""
        depths = dict.fromkeys(self._reconcilers, 0)
        for queue in self._queues.values():
            depths |= queue.depths()
        return depths

    def waiting(self) -> tuple[int, int]:
        """Return how many keys wait for their time, and how many are worked on."""
        counts = [queue.counts() for queue in self._queues.values()]
        return sum(later for later, _ in counts), sum(now for _, now in counts)

    # --- what came ----------------------------------------------------------------------------------------

    def _changed(self, changes: Sequence[ObjectChange]) -> None:
        if self.connection is not None and (
            not changes or any(change.kind in (Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM) for change in changes)
        ):
            self.connection.wake()
        if self._permit() <= 0:
            return
        usable = self._usable()
        active = [name for name, epoch in usable.items() if self._resyncs.is_active(name, epoch)]
        if len(active) < len(usable):
            self._resyncs.wake()  # this was the last list: all keys will be enqueued
        for name in active:
            self._route(self._reconcilers[name], changes)

    def _route(self, reconciler: Reconciler, changes: Sequence[ObjectChange]) -> None:
        keys: dict[str, None] = {}
        for change in changes:
            if change.kind in reconciler.reads.on(change.side):
                new_keys, error = attempt(partial(self._keys, reconciler, change))
                if error is not None:
                    text = "%s: keys() of a change of a %s failed"
                    log.error(text, reconciler.name, change.kind, exc_info=error)
                    self.worker.statistics.bug(reconciler.name)
                keys |= new_keys or {}
        if keys:
            name = reconciler.name
            self._queues[self._side_of[name]].add((name, key) for key in keys)

    def _keys(self, reconciler: Reconciler, change: ObjectChange) -> dict[str, None]:
        return dict.fromkeys(reconciler.keys(change, self._views[reconciler.name]))

    def _leader_changed(self, old: Leader | None, new: Leader | None) -> None:
        """Enqueue whatever the connection concerns."""
        if new is None:  # those that need a leader are not called about the objects of this one again
            self._events.forget(name for name, reconciler in self._reconcilers.items() if reconciler.needs_leader)
            self.written.forget_failures(Side.LEADER)
        if old is None or new is None:
            self._resyncs.request(self._reconcilers, urgent=True)
            return
        if old.connected and not new.connected:
            self.written.forget_accepted()
        concerned = {name: self._reconcilers[name] for name, side in self._side_of.items() if side is Side.LEADER}
        if new.connected and not old.connected:
            self._resyncs.request(concerned, urgent=False)
        elif new.synced and not old.synced:  # the others become active by it
            self._resyncs.request([name for name, r in concerned.items() if not r.needs_leader], urgent=False)
        elif new.addresses != old.addresses:
            self._resyncs.request(concerned, urgent=True)
        elif _shown(old) == _shown(new):
            return
        # For the others it is a change of the ClusterSet, whose status shows it.
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=self._namespace, name=new.cluster_set)
        cluster_set = self.cache.get(ref, ClusterSet)
        if cluster_set is not None:
            self._changed([ObjectChange(side=Side.LOCAL, kind=Kind.CLUSTER_SET, old=cluster_set, new=cluster_set)])

    def _enqueue_all(self, reconciler: Reconciler, *, urgent: bool = False, spread: float = 0.0) -> None:
        """Enqueue all keys of a reconciler: now, or one after the other over so many seconds."""
        keys, error = attempt(lambda: list(reconciler.all_keys(self._views[reconciler.name])))
        if error is not None:
            log.error("%s: all_keys() failed", reconciler.name, exc_info=error)
            self.worker.statistics.bug(reconciler.name)
            return
        entries = [(reconciler.name, key) for key in keys or ()]
        queue = self._queues[self._side_of[reconciler.name]]
        if not spread:
            queue.add(entries, urgent=urgent)
            return
        for entry in entries:
            queue.add_after(entry, random.uniform(0.0, spread), urgent=False)  # noqa: S311 (spreads load)

    def _gate(self, reconciler: Reconciler) -> bool:
        """Tell whether a reconciler may be called: all that it reads has been listed once."""
        if not self.cache.synced(Side.LOCAL):
            return False
        return not reconciler.needs_leader or self._leader_synced()

    def _leader_synced(self) -> bool:
        return self.view.leader is not None and self.cache.synced(Side.LEADER)

    def _usable(self) -> Mapping[str, int]:
        """Return the reconcilers whose gate is open, with the epoch of the connection for which it is."""
        # Read before the gates: the next epoch opens them again.
        epoch = self.connection.epoch if self.connection is not None else 0
        if not self.cache.synced(Side.LOCAL):
            return {}
        by_leader = self._leader_synced()
        return {
            name: epoch if reconciler.needs_leader else 0
            for name, reconciler in self._reconcilers.items()
            if by_leader or not reconciler.needs_leader
        }

    # --- the supervisor -----------------------------------------------------------------------------------

    def _supervise(self) -> None:
        resync, prune = self._next_resync(), time.monotonic() + PRUNE
        while not self._stopping.is_set():
            self._local.do_without_missing()
            self._resync()
            if time.monotonic() >= resync:
                resync = self._next_resync()
                spread = min(self._timing.spread, self._timing.resync / 2)
                for name in self._usable() if self._permit() > 0 else ():
                    self._enqueue_all(self._reconcilers[name], spread=spread)
            if time.monotonic() >= prune:  # not each time: it passes over all objects written in ten minutes
                self.written.prune(time.monotonic())
                prune = time.monotonic() + PRUNE
            self.cache.forget_unconfirmed(self._timing.unconfirmed)
            if (events := self._events.take()) is not None:
                self._record(events)
            self._resyncs.wait(self._timing.look)

    def _resync(self) -> None:
        """Enqueue all keys of the reconcilers that became active, or of which a resync was requested."""
        # Without the permit nothing is enqueued: its return requests a resync of all reconcilers.
        requested = self._resyncs.take(self._usable())
        if self._permit() > 0:
            for name, urgent in requested.items():
                self._enqueue_all(self._reconcilers[name], urgent=urgent)
        self._resyncs.done()

    def _next_resync(self) -> float:
        return time.monotonic() + self._timing.resync * random.uniform(0.8, 1.0)  # noqa: S311 (spreads load)

    # --- the workers --------------------------------------------------------------------------------------

    def _work(self, side: Side) -> None:
        queue = self._queues[side]
        while (entry := queue.take()) is not None:
            failed = True
            try:
                failed = not self.worker.work(entry, queue)
            finally:
                queue.done(entry, failed=failed)


def _shown(leader: Leader) -> object:
    """Return what the ClusterSet's status shows of the connection."""
    return leader.connected, leader.error, leader.token, leader.token_error
