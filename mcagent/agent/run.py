"""The agent process: puts source, loop, backends and pages together, and lives until it is told to stop.

Signals: SIGTERM and SIGINT end the process and leave the dataplane exactly as it is. SIGHUP reads the
configuration again; what can change while running is taken over, for the rest the log asks for a restart.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mcagent.agent.config_keys import KEYS, Settings
from mcagent.agent.control_loop.loop import Loop
from mcagent.agent.control_loop.reconciler import Reconciler
from mcagent.agent.control_loop.schedule import Timing
from mcagent.agent.control_loop.startup import Startup, collector_off, collector_on
from mcagent.agent.lock import NodeLock
from mcagent.agent.reports.counters import drop_counts, nft_drop_counts, tunnel_samples
from mcagent.agent.reports.recorder import NodeRecorder
from mcagent.agent.reports.reporter import Reporter
from mcagent.agent.reports.servers import Servers
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.agent.wireguard import wireguard_report
from mcagent.agent.wiring import (
    Api,
    facts_reader,
    field_selectors,
    make_facilities,
    make_live,
    make_monitor,
    make_prober,
    make_source,
    make_wireguard_watch,
)
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.snapshot import ATTRIBUTE
from mcagent.model.config import Config
from mcagent.model.errors import BackendError, McagentError
from mcagent.model.informer_state import InformerState
from mcagent.model.node_state import Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired
from mcagent.model.problem import Problem
from mcagent.model.resources import Backend
from mcagent.observe.metrics import Metrics, Sources
from mcagent.observe.pages import Identity, checks, make_pages
from mcagent.observe.report import Report
from mcagent.observe.systemd import Notifier
from mcagent.observe.version import version
from mcagent.supervised import Supervised, dead

log = logging.getLogger(__name__)

# Keys that may change while the agent runs: nothing that exists is named or tagged by them.
RELOADABLE = frozenset(
    {
        "enableGateway",
        "enablePodToPodConnectivity",
        "podCIDRs",
        "clusterID",
        "sourceNAT",
        "podRouting",
        "exposeNodes",
        "newConnections",
        "allowedRemoteCIDRs",
        "protectedCIDRs",
        "mtu",
        "tunnelSourceCheck",
        "logLevel",
    }
)
STARTUP = 60.0  # seconds after which start-up counts as over, whatever is still waited for
TURN = 5.0  # seconds between two looks whether the loop still runs
HAND_OVER_MORE = 3.0  # seconds beside the two time-outs of a drain after which the process ends anyway
HAND_OVER_LOOK = 0.05


class Agent:
    """Everything that runs in the process. `start`, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        """Put it together; nothing is connected or changed yet. Raises SourceError, BackendError, OSError."""
        self.settings = settings
        self._facilities = make_facilities(settings, self._wireguard_changed)
        self._store = SnapshotStore(self._changed)
        self._source, self._api = make_source(settings, self._store, self._changed)
        self._recorder = (
            NodeRecorder(settings.core.node_name, self._api.events.record) if self._api is not None else None
        )
        self._wanted: tuple[frozenset[Kind], Mapping[Kind, str]] = (ALWAYS_NEEDED, {})
        self._snapshot = Snapshot()
        self._notifier = Notifier()
        self._starting = True
        self._began = time.monotonic()
        self._reported: tuple[Problem, ...] = ()
        self._monitor = make_monitor(settings, self._facilities, self._kernel_changed)
        self._wireguard = make_wireguard_watch(settings, self._facilities, self._wireguard_changed)
        self.metrics = Metrics()
        self._reporter = Reporter(self._facilities.by_name, self.metrics)
        self._prober = make_prober(settings, self._facilities)
        self.live = make_live(settings, self._facilities, self._prober.gateway_lost)
        self._reconciler = Reconciler(
            backends=self._facilities.by_name,
            read_facts=facts_reader(settings, self._facilities, self._api),
            config=settings.core,
            live=self.live,
            state_lost=self._prober.state_lost,
        )
        self.loop = Loop(
            source=self,
            reconciler=self._reconciler,
            startup=Startup(
                self._reconciler,
                backends=self._facilities.by_name,
                flows_there=self._facilities.openflow.has_flows,
                want=self.want,
            ),
            reporter=self._reporter,
            timing=Timing(resync=settings.resync_period),
            on_turn=self._turned,
        )
        sources = Sources(
            report=lambda: self.loop.report,
            informers=self.informers,
            ready=self.ready,
            tunnels=lambda: tunnel_samples(self._facilities.ovsdb),
            drops=lambda: drop_counts(self._facilities.openflow),
            nft_drops=lambda: nft_drop_counts(self._facilities.nft),
            live=lambda: self.live.report,
            wireguard=lambda: wireguard_report(self._facilities.wireguard),
        )
        self.metrics.watch(sources)
        identity = Identity(
            node=settings.core.node_name,
            cluster_id=settings.core.cluster_id,
            source=settings.source,
            started_at=time.time(),
        )
        self._http = Servers(
            settings,
            make_pages(
                identity=identity,
                metrics=self.metrics,
                sources=sources,
                alive=lambda: self.loop.alive,
                pending=lambda: self.loop.pending,
            ),
        )
        self._thread = Supervised(self.loop.run, name="loop")

    @property
    def port(self) -> int:
        """The port of all pages."""
        return self._http.port

    @property
    def running(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to read objects and to reconcile."""
        Supervised(self._connect, name="connect").start()
        self._source.start(sorted(ALWAYS_NEEDED))
        if self._api is not None:
            self._api.start()
        self._prober.start()
        self._thread.start()

    def _connect(self) -> None:
        """Connect to Open vSwitch while the first objects are listed; where that fails the first pass says why."""
        with contextlib.suppress(BackendError):
            self._facilities.ovsdb.ofports()

    def stop(self) -> None:
        """End everything; the dataplane stays as it is."""
        self._notifier.stopping()
        self.loop.stop()
        self._source.stop()
        if self._api is not None:
            self._api.stop()
        self._thread.join()
        self._prober.stop()
        self._http.close()
        self._monitor.stop()
        self._wireguard.stop()
        self._facilities.close()

    def hand_over(self, interrupted: Callable[[], bool]) -> None:
        """Let other gateways take over; return when they have, after the time-outs, or when `interrupted`."""
        self.live.hand_over("the agent ends (drainOnStop)")
        self.loop.live_changed()
        deadline = time.monotonic() + 2 * self.settings.drain_timeout + HAND_OVER_MORE
        while not self.live.handed_over and not interrupted() and time.monotonic() < deadline:
            time.sleep(HAND_OVER_LOOK)

    def reload(self, settings: Settings) -> None:
        """Take over a configuration that was read again, if it changes only what can change."""
        changed = {
            key.path
            for key in KEYS
            if getattr(settings.core if key.holder is Config else settings, key.attribute)
            != getattr(self.settings.core if key.holder is Config else self.settings, key.attribute)
        }
        fixed = sorted(changed - RELOADABLE)
        if fixed:
            log.error("the new configuration is not used: a restart is needed to change %s", ", ".join(fixed))
            return
        logging.getLogger().setLevel(settings.log_level.upper())
        log.info("the configuration was read again; changed: %s", ", ".join(sorted(changed)) or "nothing")
        self.settings = settings
        if settings.core != self._reconciler.config:
            self.loop.reconfigure(settings.core)

    def _changed(self) -> None:
        self.loop.changed()

    def _kernel_changed(self) -> None:
        self.loop.suspect(Backend.NETLINK)
        self.loop.suspect(Backend.NFT)
        if self.settings.core.encrypts:
            self.loop.suspect(Backend.WIREGUARD)

    def _wireguard_changed(self) -> None:
        self.loop.restarted(Backend.WIREGUARD)  # at once: only what is not our own change is told here

    # --- what the loop asks for: the loop's thread -------------------------------------------------------

    def take(self) -> Snapshot:
        """Return the latest snapshot."""
        self._snapshot = self._store.take()
        return self._snapshot

    def want(self, kinds: frozenset[Kind], role: Role) -> None:
        """Read these kinds, as far as a Node of this role needs them. No kinds: as before."""
        selectors = field_selectors(role, self.settings.core.node_name)
        wanted = (kinds, {kind: text for kind, text in selectors.items() if kind in kinds})
        if kinds and wanted != self._wanted:
            log.info("objects needed now: %s", ", ".join(sorted(kinds)))
            self._wanted = wanted
            self._source.set_kinds(sorted(kinds), selectors)

    def _turned(self, report: Report) -> None:
        whole_pass = report.passes > 0 and not report.waiting_for
        if self._starting and (whole_pass or time.monotonic() - self._began > STARTUP):
            self._starting = False
            self._watch()
            collector_on()
        if self._recorder is not None:
            self._recorder.turned(report, self.live.report.draining)
        if self._api is not None and report.desired is not None:
            self._write_to_api(self._api, report.desired)
        ready = report.converged
        if report.error:
            status = f"nothing is changed: {report.error}"
        elif report.waiting_for:
            status = f"waiting for objects: {', '.join(report.waiting_for)}"
        elif ready:
            role = report.desired.state.role if report.desired else ""
            status = f"{role}: the dataplane is as it should be"
        else:
            status = "; ".join(text for backend in report.backends for text in backend.errors) or "starting"
        if not dead():  # else the watchdog ends the process
            self._notifier.turn(ready=ready, status=status[:500])

    def _write_to_api(self, api: Api, desired: Desired) -> None:
        if desired.problems != self._reported:
            self._reported = desired.problems
            api.events.problems(self._reported)
        found = desired.state.encryption.publication
        if found is not None:
            api.publisher.want(found.meta, found.there, found.wanted)

    def _watch(self) -> None:
        """Begin to watch the facilities: what changed before is reported at once then."""
        self._facilities.ovsdb.watch(lambda: self.loop.suspect(Backend.OVSDB), self.loop.live_changed)
        # With ovs-vswitchd all flows go; on the userspace datapath the host port and its routes, too.
        lost = (Backend.OPENFLOW, Backend.OVSDB, Backend.NETLINK)
        self._facilities.openflow.watch(
            lambda: self.loop.suspect(Backend.OPENFLOW), lambda: self.loop.restarted(*lost)
        )
        try:
            if self.settings.core.encrypts:
                self._wireguard.start()
            self._monitor.start()
        except BackendError as error:
            log.error("%s: changes in the kernel are found every %g s only", error, self.settings.resync_period)

    # --- what pages ask for: any thread ------------------------------------------------------------------

    def informers(self) -> Iterable[InformerState]:
        """Return how reading goes, by kind."""
        return [
            replace(state, objects=len(getattr(self._snapshot, ATTRIBUTE[kind])))
            for kind, state in sorted(self._source.state().items())
        ]

    def ready(self) -> bool:
        """Tell what /readyz tells."""
        return all(check.good for check in checks(self.loop.report, self.informers(), pending=self.loop.pending))


def run_agent(settings: Settings, *, reload: Callable[[], Settings]) -> None:
    """Run until SIGTERM or SIGINT. Raises BusyError while another agent holds the Node, and what `Agent` does."""
    lock = NodeLock(Path(settings.run_dir))
    wake = threading.Event()
    received: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        received.append(number)
        wake.set()

    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, on_signal)
    collector_off()
    agent = Agent(settings)
    log.info("mcagent %s on Node %s, objects from %s", version(), settings.core.node_name, settings.source)
    agent.start()
    while True:
        wake.wait(TURN)
        wake.clear()
        if not agent.running:
            raise McagentError("the loop has ended by itself, which is a bug: the log says why")
        while received:
            number = received.pop(0)
            if number != signal.SIGHUP:
                if agent.settings.drain_on_stop:
                    log.info("%s: handing over to other gateways first", signal.Signals(number).name)
                    agent.hand_over(lambda: bool(received))
                log.info("%s: ending; the dataplane stays as it is", signal.Signals(number).name)
                agent.stop()
                lock.release()
                return
            try:
                agent.reload(reload())
            except McagentError as error:
                log.error("the new configuration is not used: %s", error)
