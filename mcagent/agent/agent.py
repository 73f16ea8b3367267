"""What runs in the agent's process, put together: objects, control loop, backends, watches and pages."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping

from mcagent.agent.config import Settings
from mcagent.agent.control_loop.loop import Loop
from mcagent.agent.control_loop.reconciler import Reconciler
from mcagent.agent.control_loop.schedule import Timing
from mcagent.agent.control_loop.startup import Startup
from mcagent.agent.doctor import DoctorPage
from mcagent.agent.live_trace import LivePage, SeenPage
from mcagent.agent.objects import Objects
from mcagent.agent.reachability import Reachability
from mcagent.agent.reports.counters import (
    drop_counts,
    nft_drop_counts,
    port_statistics,
    rule_counts,
    service_counts,
    wireguard_report,
)
from mcagent.agent.reports.links import LinkReader
from mcagent.agent.reports.policy_log import PolicyLog
from mcagent.agent.reports.reporter import Reporter, TurnRecorder
from mcagent.agent.reports.servers import Servers
from mcagent.agent.trace import Switch, TracePage
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.agent.wiring import (
    facts_reader,
    make_facilities,
    make_live,
    make_monitor,
    make_prober,
)
from mcagent.core.tunnel_probes import is_probe
from mcagent.dataplane.facts import leads_to_pod
from mcagent.dataplane.wireguard.watch import WireGuardWatch
from mcagent.http.server import Query
from mcagent.model.errors import BackendError
from mcagent.model.node_state import PolicyRuleName
from mcagent.model.resources import Backend
from mcagent.observe.browser import browser_pages
from mcagent.observe.metrics import Metrics, Sources
from mcagent.observe.pages import Identity, checks, make_pages
from mcagent.observe.report import Report
from mcagent.observe.topology import node_topology, page_of
from mcagent.observe.version import version
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

STARTUP = 60.0  # seconds for which the garbage collector stays off at most: until all is programmed once
HAND_OVER_MORE = 3.0  # seconds beside the two time-outs of a drain after which the process ends anyway
HAND_OVER_LOOK = 0.05


class Agent:
    """Everything that runs in the process. `start`, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        """Put it together; nothing is connected or changed yet. Raises SourceError, BackendError, OSError."""
        self.settings = settings
        self._facilities = make_facilities(settings)
        self._objects = Objects(settings, self._input_changed)
        self._watching = False
        self._began = time.monotonic()
        self._monitor = make_monitor(settings, self._facilities, self._kernel_changed)
        self._wireguard = WireGuardWatch(self._facilities.wireguard, self._wireguard_changed)
        self._prober = make_prober(settings, self._facilities)
        self._reachability = Reachability(send=self._facilities.openflow.send_out, changed=self._heard)
        self._probes = TunnelProbes(
            send=self._facilities.openflow.send_each, on=settings.tunnel_probes, changed=self._heard
        )
        self.live = make_live(
            settings, self._facilities, self._prober.gateway_lost, self._reachability, self._probes
        )
        self._recorder = TurnRecorder(
            settings.core.node_name,
            self._objects.api,
            LinkReader(lambda: self.live.report, lambda: port_statistics(self._facilities.ovsdb)),
        )
        reconciler = Reconciler(
            backends=self._facilities.by_name,
            read_facts=facts_reader(settings, self._facilities, self._objects.api_servers),
            config=settings.core,
            live=self.live,
            state_lost=self._prober.state_lost,
        )
        metrics = Metrics()
        self.loop = Loop(
            take=self._objects.take,
            want=self._objects.want,
            reconciler=reconciler,
            startup=Startup(
                reconciler,
                backends=self._facilities.by_name,
                flows_there=self._facilities.openflow.has_flows,
                want=self._objects.want,
            ),
            reporter=Reporter(self._facilities.by_name, metrics),
            timing=Timing(resync=settings.resync_period),
            on_turn=self._turned,
        )
        self._thread = Supervised(self.loop.run, name="loop")
        sources = self._sources()
        self._policy_log = PolicyLog(self._policy_rules, sources.rules)
        metrics.watch(sources)
        identity = Identity(
            node=settings.core.node_name,
            cluster_id=settings.core.cluster_id,
            source=settings.source,
            started_at=time.time(),
        )
        pages = make_pages(
            identity=identity,
            metrics=metrics,
            sources=sources,
            alive=lambda: self.loop.alive,
            pending=lambda: self.loop.pending,
        )
        browser = browser_pages(lambda: _topology(identity, sources))
        doctor = DoctorPage(lambda: self.settings, pages["/status"])
        self._http = Servers(settings, {**pages, **browser, "/doctor": doctor, **self._trace_pages()})

    def _sources(self) -> Sources:
        """Return what pages and metrics read when somebody asks."""
        facilities = self._facilities
        return Sources(
            report=lambda: self.loop.report,
            informers=self._objects.informers,
            ready=self.ready,
            ports=lambda: port_statistics(facilities.ovsdb),
            drops=lambda: drop_counts(facilities.openflow),
            nft_drops=lambda: nft_drop_counts(facilities.nft),
            rules=lambda: rule_counts(facilities.openflow),
            services=lambda: service_counts(facilities.openflow),
            live=lambda: self.live.report,
            probes=self._probes.report,
            wireguard=lambda: wireguard_report(facilities.wireguard),
        )

    def _trace_pages(self) -> dict[str, Query]:
        """Return the pages that `mcagent trace` asks."""
        switch = Switch(self.settings.ovsdb, self.settings.core)
        live = LivePage(
            switch, lambda pod: leads_to_pod(pod, switch.config.host_port), self._facilities.openflow.send
        )
        trace = TracePage(switch, lambda: self.loop.report.desired)
        return {"/trace": Query(trace), "/trace/live": Query(live), "/trace/seen": Query(SeenPage(switch))}

    def _policy_rules(self) -> Mapping[int, PolicyRuleName]:
        """Return the rules of policies in force; from any thread."""
        desired = self.loop.report.desired
        return {} if desired is None else desired.state.policy_rules

    @property
    def running(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to read objects and to reconcile."""
        self._policy_log.start()
        self._objects.start(write=True)
        self._reachability.start()
        self._probes.start()
        self._thread.start()

    def stop(self) -> None:
        """End everything; the dataplane stays as it is."""
        self._recorder.stopping()
        self.loop.stop()
        self._objects.stop()
        self._policy_log.stop()
        self._thread.join()
        self._reachability.stop()
        self._probes.stop()
        self._http.close()
        self._monitor.stop()
        self._wireguard.stop()
        self._facilities.close()

    def hand_over(self, interrupted: Callable[[], bool]) -> None:
        """Let other gateways take over; return when they have, after the time-outs, or when `interrupted`."""
        self.live.hand_over("the agent shuts down (drainOnStop)")
        self.loop.live_changed()
        deadline = time.monotonic() + 2 * self.settings.drain_timeout + HAND_OVER_MORE
        while not self.live.handed_over and not interrupted() and time.monotonic() < deadline:
            time.sleep(HAND_OVER_LOOK)

    def reconfigure(self, settings: Settings) -> None:
        """Use these settings from now on, as far as they can change."""
        changed = settings.core != self.settings.core
        self.settings = settings
        if changed:
            self.loop.reconfigure(settings.core)

    def ready(self) -> bool:
        """Tell what /readyz tells; from any thread."""
        found = checks(self.loop.report, self._objects.informers(), pending=self.loop.pending)
        return all(check.good for check in found)

    def _input_changed(self) -> None:
        self.loop.changed()

    def _heard(self) -> None:
        self.loop.live_changed()

    def _handed(self, port: int, frame: bytes) -> None:
        (self._probes if is_probe(frame) else self._reachability).heard(port, frame)

    def _kernel_changed(self) -> None:
        self.loop.suspect(Backend.NETLINK)
        self.loop.suspect(Backend.NFT)
        if self.settings.core.encrypts:
            self.loop.suspect(Backend.WIREGUARD)

    def _wireguard_changed(self) -> None:
        self.loop.restarted(Backend.WIREGUARD)  # at once: only what is not our own change is reported here

    def _turned(self, report: Report) -> None:
        """After each turn of the loop, in its thread."""
        if not self._watching and report.passes > 0 and not report.waiting_for:
            self._watching = True
            self._watch()
        if not gc.isenabled() and (report.desired is not None or time.monotonic() - self._began > STARTUP):
            gc.collect()
            gc.freeze()  # what start-up made stays, and is not looked at with every generation
            gc.enable()
        self._recorder.turned(report, self.live.report)

    def _watch(self) -> None:
        """Begin to watch the facilities: what changed before is reported at once then."""
        self._facilities.ovsdb.watch(lambda: self.loop.suspect(Backend.OVSDB), self.loop.live_changed)
        # With ovs-vswitchd all flows go; on the userspace datapath the host port and its routes, too.
        lost = (Backend.OPENFLOW, Backend.OVSDB, Backend.NETLINK)
        self._facilities.openflow.watch(
            lambda: self.loop.suspect(Backend.OPENFLOW),
            lambda: self.loop.restarted(*lost),
            on_packet=self._handed,
        )
        try:
            if self.settings.core.encrypts:
                self._wireguard.start()
            self._monitor.start()
        except BackendError as error:
            log.error("%s: changes in the kernel are noticed only every %g s", error, self.settings.resync_period)


def _topology(identity: Identity, sources: Sources) -> Mapping[str, object]:
    """Return what /topology says of this Node."""
    desired = sources.report().desired
    found = node_topology(
        identity.cluster_id,
        desired.state if desired is not None else None,
        sources.live(),
        sources.ports(),
        desired.problems if desired is not None else (),
        probed=sources.probes(),
    )
    return page_of("node", identity.node, version(), time.time(), (found,))
