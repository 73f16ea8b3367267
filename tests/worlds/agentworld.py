"""A small world for tests of the loop: objects as the API has them, and a Node whose facilities can be broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from devtools.fake_backend import FakeBackend
from mcagent.agent.control_loop.loop import Loop
from mcagent.agent.control_loop.reconciler import Compile, NodeReconciler
from mcagent.agent.control_loop.schedule import LoopTiming
from mcagent.agent.control_loop.startup import Startup
from mcagent.agent.reports.reporter import Reporter
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.core.compile import Compiled, Compiler
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.kinds import KINDS
from mcagent.model.net import Address
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing.decode import read_object
from mcagent.model.plan import ApplyResult, Step
from mcagent.observe.metrics.agent import Metrics

NODE = "a1"
RawObject = dict[str, Any]


def raw(kind: Kind, name: str, **content: object) -> RawObject:
    """Return an object as the API server sends it."""
    info = KINDS[kind]
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if info.namespaced:
        metadata["namespace"] = "kube-system"
    return {"apiVersion": info.api_version, "kind": str(kind), "metadata": metadata, **content}


def node(name: str = NODE, number: int = 1) -> RawObject:
    """Return a Node."""
    return raw(
        Kind.NODE,
        name,
        spec={"podCIDRs": [f"10.10.{number}.0/24"]},
        status={"addresses": [{"type": "InternalIP", "address": f"172.18.0.{number}"}]},
    )


def gateway(name: str = NODE, number: int = 1) -> RawObject:
    """Return a Gateway."""
    address = f"172.18.0.{number}"
    return raw(Kind.GATEWAY, name, gatewayIP=address, internalIP=address, serviceCIDR="10.96.0.0/16")


def cluster(number: int) -> RawObject:
    """Return a ClusterInfoImport."""
    return raw(
        Kind.CLUSTER_INFO_IMPORT,
        f"c{number}",
        spec={
            "clusterID": f"c{number}",
            "serviceCIDR": f"100.{64 + number // 256}.{number % 256}.0/24",
            "gatewayInfos": [{"gatewayIP": f"192.0.{2 + number // 256}.{number % 256}"}],
        },
    )


def watch_event(word: str, obj: RawObject) -> WatchEvent:
    """Return a change as a source delivers it."""
    return WatchEvent(type=EventType(word), object=read_object(Kind(obj["kind"]), obj))


def listed(store: SnapshotStore, kind: Kind, objects: Iterable[RawObject]) -> None:
    """Deliver all objects of a kind as a source does."""
    store.replace(kind, [read_object(kind, obj) for obj in objects])


class Facility(FakeBackend):
    """A facility in memory that may also be slow."""

    def __init__(self, name: Backend) -> None:
        super().__init__(name)
        self.slow = 0.0  # seconds

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply, after a while."""
        if self.slow:
            time.sleep(self.slow)
        return super().apply(steps)


class World:
    """A Node with its loop, and the source that feeds it."""

    def __init__(
        self, facilities: Mapping[Backend, Facility] | None = None, timing: LoopTiming | None = None
    ) -> None:
        self.facilities = dict(facilities or {name: Facility(name) for name in Backend})
        self.kinds_read: list[frozenset[Kind]] = []
        self.store = SnapshotStore(self._changed)
        self.reporter = Reporter(self.facilities, Metrics())
        self.compile: Compile = Compiler().compile
        self.facts_error: BackendError | None = None
        self.facts = Facts()
        self.states_lost = 0  # how often conntrack was said to be gone
        self.timing = timing or LoopTiming(
            retry_first=0.02, unreachable_max=0.05, retry_on_change=0.05, suspect_delay=0.02
        )
        reconciler = NodeReconciler(
            backends=self.facilities,
            read_facts=self._facts,
            compiler=self._compile,
            config=Config(node_name=NODE),
            state_lost=self._state_lost,
        )
        flows = self.facilities[Backend.OPENFLOW]
        self.loop = Loop(
            take=self.store.take,
            set_kinds=self.set_kinds,
            reconciler=reconciler,
            startup=Startup(
                reconciler,
                backends=self.facilities,
                has_flows=lambda: bool(flows.observe()),
                set_kinds=self.set_kinds,
            ),
            reporter=self.reporter,
            timing=self.timing,
        )
        self._thread = threading.Thread(target=self.loop.run, daemon=True)

    def _changed(self) -> None:
        self.loop.changed()

    def _compile(self, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
        return self.compile(snapshot, facts, config)

    def _facts(self, address: Address | None) -> Facts:
        if self.facts_error is not None:
            raise self.facts_error
        return self.facts

    def _state_lost(self, state: NodeState) -> None:
        assert state.role
        self.states_lost += 1

    def set_kinds(self, kinds: frozenset[Kind], *, all_pods: bool, all_services: bool) -> None:
        """Remember what was asked for."""
        self.kinds_read.append(kinds)

    def list_all(self, clusters: int = 3, gateways: Sequence[RawObject] = ()) -> None:
        """Tell the complete input: a Node, which is a gateway, and so many clusters."""
        for kind in (Kind.SERVICE, Kind.SERVICE_EXPORT, Kind.ENDPOINT_SLICE, Kind.SERVICE_IMPORT):
            listed(self.store, kind, [])
        listed(self.store, Kind.NODE, [node()])
        listed(self.store, Kind.GATEWAY, list(gateways) or [gateway()])
        listed(self.store, Kind.CLUSTER_INFO_IMPORT, [cluster(number) for number in range(clusters)])

    def tell(self, kind: Kind, type_: str, obj: RawObject) -> None:
        """Tell one change."""
        self.store.apply(kind, watch_event(type_, obj))

    def start(self) -> None:
        """Let the loop run."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop and wait for it."""
        self.loop.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so within {seconds} s: {self._told()}"
            time.sleep(0.002)

    def _told(self) -> str:
        report = self.loop.report
        return f"{report.waiting_for} {report.error} {report.backends}"

    def settled(self) -> bool:
        """Whether the dataplane equals all input told so far."""
        return not self.loop.pending and self.loop.report.converged

    @property
    def held(self) -> dict[Backend, dict[ResourceKey, Resource]]:
        """What all facilities hold."""
        return {name: dict(facility.world) for name, facility in self.facilities.items()}

    @property
    def applied(self) -> list[Step]:
        """All steps done."""
        return [step for facility in self.facilities.values() for step in facility.applied]
