"""The controller process: engine, Lease, webhook and pages, until SIGTERM or SIGINT.

Then it finishes current writes and releases the Lease, so that another replica continues at once. Written
objects stay.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mcagent import supervised
from mcagent.controller.admission.accounts import Accounts
from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.contract.area_holder import released
from mcagent.controller.contract.health import unhealthy_by_reason
from mcagent.controller.discovered import complete, own_namespace, with_cluster_uid
from mcagent.controller.machinery.engine import Engine, EngineTiming
from mcagent.controller.machinery.lease import Elector, LeaseTiming
from mcagent.controller.machinery.reconciler import Reconciler, Side, View, Wanted
from mcagent.controller.machinery.serving.metrics import registry
from mcagent.controller.machinery.serving.pages import Process, make_pages
from mcagent.controller.machinery.serving.servers import Servers
from mcagent.controller.machinery.statistics import Durations
from mcagent.controller.settings import MemberLimits
from mcagent.controller.webhook.clients import ClientCertificates
from mcagent.controller.webhook.keeper import DirectoryKeeper, Keeper, SecretKeeper
from mcagent.controller.webhook.lookup import NEEDED, ClusterLookup
from mcagent.controller.webhook.server import Review, WebhookServer, body_limit
from mcagent.http.server import Pages
from mcagent.kube.client import Client
from mcagent.kube.events import EventRecorder
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.errors import McagentError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem
from mcagent.observe.browser import browser_pages
from mcagent.observe.systemd import Notifier
from mcagent.observe.topology import page_of
from mcagent.observe.version import version

log = logging.getLogger(__name__)

# The end of a Pod reaches this process and the API server at the same time. Until all Nodes know it, they send new
# connections of the Service here, and an unanswered review is refused (failurePolicy: Fail).
LEAVING = 3.0  # seconds
TURN = 5.0  # seconds between two checks that all threads run
_CONFIGURATIONS = {
    ControllerRole.MEMBER: (Kind.VALIDATING_WEBHOOK_CONFIGURATION,),
    ControllerRole.LEADER: (Kind.VALIDATING_WEBHOOK_CONFIGURATION, Kind.MUTATING_WEBHOOK_CONFIGURATION),
}
_EVENTS_PER_MINUTE = 60.0


def reconcilers_of(role: ControllerRole, settings: ControllerSettings, home: str) -> list[Reconciler]:
    """Return the reconcilers of a role. `home`: the controller's own namespace."""
    if role is ControllerRole.LEADER:
        from mcagent.controller.leader import leader_reconcilers

        return leader_reconcilers(settings.resolved(home).leader)
    from mcagent.controller.member import member_reconcilers

    return member_reconcilers(settings.resolved(home).member)


def reviews_of(
    engine: Engine, client: Client, namespace: str, accounts: Accounts, limits: MemberLimits | None = None
) -> Mapping[str, Review]:
    """Return the webhook's reviews by URL path."""
    from mcagent.controller.admission import mutate, review

    lookup = ClusterLookup(engine.cache, client, namespace, limits)
    return {"/validate": lambda request: review(request, lookup, accounts), "/mutate": mutate}


class Controller:
    """The parts of the process. `start`, then `stop`."""

    def __init__(
        self, role: ControllerRole, settings: ControllerSettings, reconcilers: Sequence[Reconciler] | None = None
    ) -> None:
        """Create all parts, without reading or writing objects. Raises SourceError, OSError, ValueError."""
        # Not what the Lease has: a copy of a cluster has a copy of its Lease.
        settings = replace(settings, member=replace(settings.member, instance=str(uuid.uuid4())))
        self.role, self.settings = role, settings
        home = settings.pod_namespace or own_namespace()
        self._home, self.namespace = home, settings.read_namespace(home)
        namespace = self.namespace
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        name = settings.webhook_service or f"mcagent-{role}"
        client = Client(settings.kubeconfig, user_agent=f"mcagent-{role}/{version()}")
        self._client = client
        self._news: set[Event] = set()  # current Events that are no warnings
        self._events = EventRecorder(
            client,
            node=socket.gethostname(),
            component=f"mcagent-{role}",
            per_minute=_EVENTS_PER_MINUTE,
            spread=0.5,
            permit=self._permit,
        )
        self.elector = (
            Elector(
                # Renewing must not wait behind anything else.
                Client(settings.kubeconfig, user_agent=f"mcagent-{role}/{version()}"),
                namespace=home,
                name=f"mcagent-{role}",
                identity=self.identity,
                gained=self._gained,
                lost=self._lost,
                timing=LeaseTiming(
                    duration=settings.lease_duration,
                    renew_deadline=settings.renew_deadline,
                    retry=settings.retry_period,
                ),
            )
            if settings.leader_elect
            else None
        )
        self.engine = Engine(
            reconcilers_of(role, settings, home) if reconcilers is None else reconcilers,
            client,
            namespace=namespace,
            home=home,
            member=role is ControllerRole.MEMBER,
            also=NEEDED if role is ControllerRole.LEADER and settings.webhook_port else (),
            permit=self._permit,
            record=self._record,
            last=self._last_writes,
            timing=EngineTiming(workers=settings.workers, resync=settings.resync_period),
        )
        self.webhook: WebhookServer | None = None
        self._keeper: Keeper | None = None
        if settings.webhook_port:
            address = (settings.webhook_host or "0.0.0.0", settings.webhook_port)
            reviews = reviews_of(self.engine, client, namespace, settings.accounts(home), settings.leader.limits)
            authorities, names = settings.webhook_client_ca, settings.webhook_client_names
            self.webhook = WebhookServer(
                address,
                reviews,
                clients=ClientCertificates(authorities=authorities, names=names),
                max_body=body_limit(settings.leader.limits.max_export_bytes),
            )
            self._keeper = (
                DirectoryKeeper(Path(settings.webhook_cert_dir), self.webhook)
                if settings.webhook_cert_dir
                else SecretKeeper(
                    client,
                    self.webhook,
                    namespace=home,
                    service=name,
                    leading=self.leading,
                    configurations=_CONFIGURATIONS[role],
                    everywhere=not namespace,
                )
            )
        self._process = Process(
            role=role,
            identity=self.identity,
            namespace=namespace,
            started_at=time.time(),
            engine=self.engine,
            leading=self.leading,
            holder=lambda: self.elector.holder if self.elector is not None else self.identity,
            lease_error=lambda: self.elector.error if self.elector is not None else "",
            webhook=self._webhook_problem,
            dead=self.dead,
            reviews=lambda: self.webhook.counts() if self.webhook is not None else {},
            review_durations=lambda: self.webhook.durations() if self.webhook is not None else Durations(),
            certificate_expiry=lambda: self._keeper.expires if self._keeper is not None else 0.0,
            events=self._events.counts,
            unhealthy=self._unhealthy,
            members=self._members if role is ControllerRole.LEADER else None,
        )
        self.registry = registry(self._process)
        pages: Pages = make_pages(self._process, self.registry)
        if role is ControllerRole.LEADER:
            pages = {**pages, **browser_pages(self._topology)}
        self.servers = Servers(settings, pages, client)

    def _unhealthy(self) -> Mapping[str, int]:
        return unhealthy_by_reason(self.engine.view.list(ClusterSet, namespace=self.namespace or None))

    def _last_writes(self, view: View) -> Sequence[Wanted]:
        if self.role is ControllerRole.LEADER:
            return list(released(view, self.namespace or None, self._home))
        from mcagent.controller.member.announce import released_announcement

        return released_announcement(view, self.settings.member)

    def _members(self) -> Mapping[str, int]:
        from mcagent.controller.leader.cluster_set import members_by_state

        return members_by_state(self.engine.view, self.namespace or None)

    def _topology(self) -> Mapping[str, object]:
        from mcagent.controller.leader.topology import topologies

        led = topologies(self.engine.view, self.namespace or None)
        return page_of("clusterset", self.identity, version(), time.time(), led)

    # --- any thread ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port of /healthz and /readyz."""
        return self.servers.port

    def leading(self) -> bool:
        """Tell whether this replica may write."""
        return self._permit() > 0

    def ready(self) -> bool:
        """Tell whether /readyz answers 200."""
        return self._process.ready()

    def dead(self) -> list[str]:
        """Return the threads that have ended unexpectedly, and why."""
        if broken := supervised.dead():
            return broken
        ended = list(self.engine.dead())
        if self.elector is not None and not self.elector.alive:
            ended.append("lease")
        if self.webhook is not None and not self.webhook.alive:
            ended.append("webhook")
        if self._keeper is not None and not self._keeper.alive:
            ended.append("certificate")
        return ended

    def start(self) -> None:
        """Start reading, and writing once this replica has the Lease."""
        self._events.start()
        self.engine.start()
        if self.elector is not None:
            self.elector.start()
        if self._keeper is not None:
            self._keeper.start()

    def stop(self, *, leaving: float = 0.0) -> None:
        """Finish writes, release the Lease, answer the webhook for `leaving` more seconds, and end all parts."""
        finished = self.engine.stop()
        if self._keeper is not None:
            self._keeper.stop()
        if self.elector is not None:
            self.elector.stop()
            if finished:  # else another replica waits until the Lease has expired
                self.elector.release()
        self._events.stop()
        if self.webhook is not None:
            time.sleep(leaving)
            self.webhook.close()
        self.servers.close()
        self._client.close()

    def status(self) -> str:
        """Return the state of the process in one line, for systemd."""
        unsynced = self.engine.cache.unsynced(Side.LOCAL)
        if unsynced:
            return f"waiting for objects: {', '.join(sorted(unsynced))}"
        leader = self.engine.view.leader
        parts = ["active" if self.leading() else "standby"]
        if self.role is ControllerRole.MEMBER:
            if leader is None:
                parts.append("no ClusterSet")
            else:
                parts.append("connected to the leader" if leader.connected else f"leader away: {leader.error}")
        return ", ".join(parts)

    # --- callbacks of parts -------------------------------------------------------------------------------

    def _permit(self) -> float:
        return self.elector.permit() if self.elector is not None else float("inf")

    def _gained(self) -> None:
        self.engine.resume()
        if self._keeper is not None:
            self._keeper.wake()  # the caBundle is for the holder to write

    def _lost(self) -> None:
        self.engine.suspend()

    def _record(self, events: frozenset[Event]) -> None:
        self._events.problems(
            Problem(subject=event.subject, path="", reason=event.reason, message=event.message)
            for event in events
            if event.warning
        )
        news = {event for event in events if not event.warning}
        for event in sorted(news - self._news):
            self._events.record(event)
        self._news = news

    def _webhook_problem(self) -> str:
        if self.webhook is None or self.webhook.has_certificate:
            return ""
        return (self._keeper.error if self._keeper is not None else "") or "there is no certificate yet"


def run_controller(role: ControllerRole, settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises the errors of `Controller`; McagentError if a thread ended."""
    stop = threading.Event()
    received: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    client = Client(settings.kubeconfig, user_agent=f"mcagent-{role}/{version()}")
    settings = with_cluster_uid(role, complete(role, settings, client, stop), client, stop)
    client.close()
    if stop.is_set():
        return
    controller = Controller(role, settings)
    notifier = Notifier()
    log.info("mcagent %s: controller of a %s, namespace %s", version(), role, controller.namespace or "(all)")
    controller.start()
    gc.freeze()  # these objects stay for the life of the process
    while not stop.wait(TURN if controller.ready() else 0.5):
        if dead := controller.dead():
            raise McagentError(f"threads ended unexpectedly, which is a bug: {', '.join(dead)}; see the log")
        notifier.turn(ready=controller.ready(), status=controller.status()[:500])
    log.info("%s: exiting", signal.Signals(received[0]).name)
    notifier.stopping()
    controller.stop(leaving=LEAVING if received[0] == signal.SIGTERM else 0.0)
