"""Composes the agent's process: objects, control loop, backends, watches and pages."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

from flows.pipeline.registers import ZONE_SERVICE
from mcagent.agent.backends import facts_reader, make_backends, make_failover, make_monitor, make_prober
from mcagent.agent.config import Settings
from mcagent.agent.connections_page import ConnectionsPage
from mcagent.agent.control_loop.loop import Loop
from mcagent.agent.control_loop.reconciler import NodeReconciler
from mcagent.agent.control_loop.schedule import LoopTiming
from mcagent.agent.control_loop.startup import Startup
from mcagent.agent.doctor_page import Diagnose, DoctorPage
from mcagent.agent.ended_connections import EndedConnections, EndedImports
from mcagent.agent.flow_purge import COMMAND, FlowPurge
from mcagent.agent.object_reader import ObjectReader
from mcagent.agent.reachability import Reachability
from mcagent.agent.reports.counters import (
    conntrack_use,
    drop_counts,
    nft_drop_counts,
    port_statistics,
    rule_counts,
    service_counts,
    wireguard_report,
)
from mcagent.agent.reports.link_reader import LinkReader
from mcagent.agent.reports.policy_log import PolicyLog
from mcagent.agent.reports.recent_traffic import RecentTraffic
from mcagent.agent.reports.reporter import Reporter, TurnRecorder
from mcagent.agent.reports.servers import AgentServers
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core.tunnel_probes import is_probe
from mcagent.dataplane.connection_table import delete_connection
from mcagent.dataplane.conntrack import delete_translated
from mcagent.dataplane.facts import leads_to_pod
from mcagent.dataplane.wireguard.watch import WireGuardWatch
from mcagent.http.server import Action, Pages, Query
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.net import Network
from mcagent.model.node_state import PolicyRuleName
from mcagent.observe.browser import browser_pages
from mcagent.observe.cluster_links import Answers, answers_of, refused_pods
from mcagent.observe.gateways import LiveReport
from mcagent.observe.health import node_health
from mcagent.observe.metrics.agent import Metrics, Sources
from mcagent.observe.pages import Identity, checks, make_pages
from mcagent.observe.report import Report
from mcagent.observe.topology import node_topology, page_of
from mcagent.observe.version import version
from mcagent.observe.wireguard import summary_of
from mcagent.supervised import Supervised
from mcagent.trace.live_pages import LivePage, SeenPage
from mcagent.trace.pages import TracePage, VswitchdControl

STARTUP = 60.0  # seconds: longest time that the garbage collector is off, until the first desired state is applied
HAND_OVER_MARGIN = 3.0  # seconds after the two time-outs of a drain when the process ends in any case
HAND_OVER_POLL = 0.05


class Agent:
    """All components of the process. `start`, then `stop`."""

    def __init__(self, settings: Settings, diagnose: Diagnose) -> None:
        """Create all components; nothing is connected or changed yet. `diagnose` makes the content of /doctor.

        Raises SourceError, BackendError, OSError.
        """
        self.settings = settings
        self._backends = make_backends(settings)
        self._switch = VswitchdControl(settings.ovsdb, settings.core)
        self._objects = ObjectReader(settings, self._input_changed)
        self._watching = False
        self._began = time.monotonic()
        self._monitor = make_monitor(settings, self._backends, self._kernel_changed)
        self._wireguard = WireGuardWatch(
            self._backends.wireguard,
            lambda: self.loop.restarted(Backend.WIREGUARD),  # at once: changes of our own are not reported here
        )
        self._prober = make_prober(settings, self._backends)
        self._reachability = Reachability(send=self._backends.openflow.send_out, changed=self._gateway_changed)
        self._probes = TunnelProbes(
            send=self._backends.openflow.send_each,
            on=settings.tunnel_probes,
            changed=self._gateway_changed,
            answered=self._answer_changed,
        )
        self._ended = EndedConnections(self._delete_connection)
        self._ended_imports = EndedImports(delete_translated)
        self._flow_purge = FlowPurge(lambda: self._switch.call(COMMAND))
        self.failover = make_failover(
            settings, self._backends, self._prober.gateway_lost, self._reachability, self._probes
        )
        self._recent = RecentTraffic(lambda: port_statistics(self._backends.ovsdb) or {})
        self._recorder = TurnRecorder(
            settings.core.node_name,
            self._objects.api,
            LinkReader(
                lambda: self.failover.report,
                lambda: port_statistics(self._backends.ovsdb) or {},
                self._answers,
                self._refused_pods,
                probed=self._probes.report,
            ),
            lambda: self.settings.core.cluster_id,
        )
        reconciler = NodeReconciler(
            backends=self._backends.by_name,
            read_facts=facts_reader(settings, self._backends, self._objects.api_servers),
            config=settings.core,
            failover=self.failover,
            state_lost=self._prober.state_lost,
            policies_changed=self._flow_purge.policies_changed,
        )
        metrics = Metrics()
        self.loop = Loop(
            take=self._objects.take,
            set_kinds=self._objects.set_kinds,
            reconciler=reconciler,
            startup=Startup(
                reconciler,
                backends=self._backends.by_name,
                has_flows=self._backends.openflow.has_flows,
                set_kinds=self._objects.set_kinds,
            ),
            reporter=Reporter(self._backends.by_name, metrics),
            timing=LoopTiming(resync=settings.resync_period),
            on_turn=self._turned,
        )
        self._thread = Supervised(self.loop.run, name="loop")
        sources = self._sources()
        self._policy_log = PolicyLog(self._policy_rules, sources.rules)
        metrics.watch(sources)
        self._started_at = time.time()
        pages = make_pages(
            identity=self._identity,
            metrics=metrics,
            sources=sources,
            alive=lambda: self.loop.alive,
            pending=lambda: self.loop.pending,
        )
        browser = browser_pages(lambda: _topology(self._identity(), sources))
        doctor = DoctorPage(diagnose, lambda: self.settings, pages["/status"], lambda: self.loop.report.desired)
        self._http = AgentServers(
            settings, {**pages, **browser, "/doctor": Action(lambda _query: doctor()), **self._switch_pages()}
        )

    def _sources(self) -> Sources:
        """Return the functions by which pages and metrics read values on request."""
        backends = self._backends
        return Sources(
            report=lambda: self.loop.report,
            informers=self._objects.informers,
            ready=self.ready,
            ports=lambda: port_statistics(backends.ovsdb),
            recent=self._recent,
            drops=lambda: drop_counts(backends.openflow),
            nft_drops=lambda: nft_drop_counts(backends.nft),
            rules=lambda: rule_counts(backends.openflow),
            services=lambda: service_counts(backends.openflow),
            live=lambda: self.failover.report,
            probes=self._probes.report,
            wireguard=lambda: wireguard_report(backends.wireguard),
            conntrack=lambda: conntrack_use(self._switch.call, self.loop.report),
        )

    def _identity(self) -> Identity:
        """Return the identity by the present settings; from any thread."""
        settings = self.settings
        return Identity(
            node=settings.core.node_name,
            cluster_id=settings.core.cluster_id,
            source=settings.source,
            started_at=self._started_at,
        )

    def _switch_pages(self) -> Pages:
        """Create the pages that query ovs-vswitchd, for `mcagent trace` and `mcagent drain`."""
        switch = self._switch
        live = LivePage(
            switch, lambda pod: leads_to_pod(pod, switch.config.host_port), self._backends.openflow.send
        )
        trace = TracePage(switch, lambda: self.loop.report.desired)
        return {
            "/connections": ConnectionsPage(switch, lambda: self.loop.report),
            "/trace": Query(trace),
            "/trace/live": Action(live),
            "/trace/seen": Query(SeenPage(switch)),
        }

    def _refused_pods(self) -> Mapping[str, tuple[Network, ...]]:
        """Return the Pod CIDRs of other clusters that are not used, by cluster; from any thread."""
        desired = self.loop.report.desired
        return refused_pods(desired.state.clusters) if desired is not None else {}

    def _policy_rules(self) -> Mapping[int, PolicyRuleName]:
        """Return the policy rules in force by number; from any thread."""
        desired = self.loop.report.desired
        return {} if desired is None else desired.state.policy_rules

    @property
    def running(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start all threads: reading objects and reconciling begin."""
        self._policy_log.start()
        self._objects.start(write=True)
        self._reachability.start()
        self._probes.start()
        self._ended.start()
        self._ended_imports.start()
        self._flow_purge.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads and close servers; the dataplane stays as it is."""
        self._recorder.stopping()
        self.loop.stop()
        self._objects.stop()
        self._policy_log.stop()
        self._thread.join()
        self._reachability.stop()
        self._probes.stop()
        self._ended.stop()
        self._ended_imports.stop()
        self._flow_purge.stop()
        self._http.close()
        self._monitor.stop()
        self._wireguard.stop()
        self._backends.close()

    def hand_over(self, interrupted: Callable[[], bool]) -> None:
        """Drain to other gateways; return when that is done, after the time-outs, or when `interrupted`."""
        self.failover.hand_over("the agent shuts down (drainOnStop)")
        self.loop.liveness_changed()
        deadline = time.monotonic() + 2 * self.settings.drain_timeout + HAND_OVER_MARGIN
        while not self.failover.handed_over and not interrupted() and time.monotonic() < deadline:
            time.sleep(HAND_OVER_POLL)

    def reconfigure(self, settings: Settings) -> None:
        """Use these settings from now on; only reloadable keys may differ."""
        changed = settings.core != self.settings.core
        self.settings = settings
        if changed:
            self.loop.reconfigure(settings.core)

    def ready(self) -> bool:
        """Return whether /readyz is good; from any thread."""
        readiness = checks(self.loop.report, self._objects.informers(), pending=self.loop.pending)
        return all(check.good for check in readiness)

    def _input_changed(self) -> None:
        self.loop.changed()

    def _gateway_changed(self) -> None:
        self.loop.liveness_changed()

    def _packet_received(self, port: int, frame: bytes) -> None:
        (self._probes if is_probe(frame) else self._reachability).receive(port, frame)

    def _delete_connection(self, connection: OriginalTuple) -> None:
        if (datapath := self.loop.report.datapath) is not None:
            zone = self.settings.core.ct_zone_base + ZONE_SERVICE.offset
            delete_connection(self._switch.call, datapath, zone, connection)

    def _answer_changed(self) -> None:
        if self._objects.api is not None:
            self._objects.api.links.wake()

    def _answers(self, live: LiveReport) -> Answers:
        encryption = summary_of(self.loop.report.desired)
        return answers_of(live, self._probes.report(), encryption, wireguard_report(self._backends.wireguard))

    def _kernel_changed(self) -> None:
        self.loop.suspect(Backend.NETLINK)
        self.loop.suspect(Backend.NFT)
        if self.settings.core.encrypts:
            self.loop.suspect(Backend.WIREGUARD)

    def _turned(self, report: Report) -> None:
        """Do the work after each turn of the loop, in its thread."""
        if not self._watching and report.passes > 0 and not report.waiting_for:
            self._watching = True
            self._watch()
        if not gc.isenabled() and (report.desired is not None or time.monotonic() - self._began > STARTUP):
            gc.collect()
            gc.freeze()  # objects of start-up stay alive; later collections skip them
            gc.enable()
        if report.desired is not None and (imported := report.desired.state.imported) is not None:
            self._ended_imports.update(imported)
        self._recent.sample()
        self._recorder.turned(report, self.failover.report)

    def _watch(self) -> None:
        """Start watching the backends; changes made before are reported at once."""
        self._backends.ovsdb.watch(lambda: self.loop.suspect(Backend.OVSDB), self.loop.liveness_changed)
        # A restart of ovs-vswitchd loses all flows; on the userspace datapath also the host port and its routes.
        affected = (Backend.OPENFLOW, Backend.OVSDB, Backend.NETLINK)
        self._backends.openflow.watch(
            lambda: self.loop.suspect(Backend.OPENFLOW),
            lambda: self.loop.restarted(*affected),
            on_packet=self._packet_received,
            on_ended=self._ended.add,
        )
        if self.settings.core.encrypts:
            self._wireguard.start()
        self._monitor.start()


def _topology(identity: Identity, sources: Sources) -> Mapping[str, object]:
    """Make the content of /topology for this Node."""
    desired, now = sources.report().desired, time.time()
    state = desired.state if desired is not None else None
    problems = desired.problems if desired is not None else ()
    topology = node_topology(
        identity.cluster_id,
        state,
        sources.live(),
        sources.ports() or {},
        problems,
        probed=sources.probes(),
        findings=node_health(identity.node, state, sources.live(), problems, now, probed=sources.probes()),
    )
    return page_of("node", identity.node, version(), now, (topology,))
