"""A small world for tests of the loop: objects as the API has them, and a Node whose facilities can be broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcagent.agent.inbox import Inbox
from mcagent.agent.loop import Loop
from mcagent.agent.reconcile import Compiled, Reconciler
from mcagent.agent.reporting import Reporter
from mcagent.agent.schedule import Timing
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import ApplyResult, Desired, Step, Unit
from mcagent.model.resources import (
    Backend,
    Bridge,
    FlowEntry,
    NftSet,
    PeerKind,
    Resource,
    ResourceKey,
    Route,
    TunnelPort,
    TunnelType,
)

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
            "serviceCIDR": f"100.{number // 256}.{number % 256}.0/24",
            "gatewayInfos": [{"gatewayIP": f"192.0.{2 + number // 256}.{number % 256}"}],
        },
    )


@dataclass(frozen=True)
class Event:
    """A change, as a source tells it."""

    type: str
    object: RawObject

    @property
    def key(self) -> str:
        """As `Meta.key` has it."""
        meta = self.object["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


@dataclass(frozen=True)
class StandIn:
    """A compiled state."""

    desired: Desired
    needs: frozenset[Kind]


def compile_standin(snapshot: Snapshot, facts: Facts, config: Config, previous: Compiled | None = None) -> StandIn:
    """One unit per cluster: a tunnel, a flow and a route."""
    old = previous.desired.units if previous is not None else {}
    units: dict[str, Unit] = {}

    def put(name: str, *resources: Resource) -> None:
        before = old.get(name)
        units[name] = (
            before
            if before is not None and before.resources == resources
            else Unit(name=name, resources=resources)
        )

    put("base", Bridge(name="br-mc", datapath=DatapathType.SYSTEM), NftSet(table="mcagent", name="s", elements=()))
    for index, (key, info) in enumerate(sorted(snapshot.cluster_infos.items())):
        assert info.service_cidr is not None
        tunnel = TunnelPort(
            bridge="br-mc", name=f"mcr-{info.cluster_id}", type=TunnelType.GENEVE, remote_ip=info.gateway_ips[0],
            dst_port=0, ofport=2 + index, peer_kind=PeerKind.REMOTE, peer=info.cluster_id,
        )  # fmt: skip
        flow = FlowEntry(table=0, priority=1, match=f"ip,nw_dst={info.service_cidr}", cookie=1, actions="drop")
        put(f"cluster/{key}", tunnel, flow, Route(table=28003, destination=info.service_cidr))
    role = "gateway" if config.node_name in {g.meta.name for g in snapshot.gateways.values()} else "worker"
    needs = frozenset({Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT, Kind.NODE})
    return StandIn(Desired(units=units, summary={"role": role}), needs)


@dataclass
class Facility:
    """A backend in memory. Breaks on demand, and counts what is asked of it."""

    name: Backend
    held: dict[ResourceKey, Resource] = field(default_factory=dict)
    unreachable: bool = False
    refuses: Callable[[Step], bool] = lambda step: False
    slow: float = 0.0
    observed: int = 0
    applied: list[Step] = field(default_factory=list)

    def _reach(self, operation: str) -> None:
        if self.slow:
            time.sleep(self.slow)
        if self.unreachable:
            raise BackendError(self.name, operation, "socket", "connection refused")

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return a copy of what is held."""
        self.observed += 1
        self._reach("observe")
        return dict(self.held)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Do the steps that are not refused."""
        self._reach("apply")
        done, failed = [], []
        for step in steps:
            if self.refuses(step):
                failed.append((step, BackendError(self.name, step.op, " ".join(map(str, step.key)), "refused")))
                continue
            if step.new is None:
                self.held.pop(step.key, None)
            else:
                self.held[step.key] = step.new
            done.append(step)
        self.applied.extend(done)
        return ApplyResult(done=tuple(done), failed=tuple(failed))

    def close(self) -> None:
        """Nothing to let go of."""


class World:
    """A Node with its loop, and the source that feeds it."""

    def __init__(self, facilities: Mapping[Backend, Facility] | None = None, timing: Timing | None = None) -> None:
        self.facilities = dict(facilities or {name: Facility(name) for name in Backend})
        self.wanted: list[frozenset[Kind]] = []
        self.inbox = Inbox(self._changed)
        self.reporter = Reporter(self.facilities)
        self.compile = compile_standin
        self.facts_error: BackendError | None = None
        self.timing = timing or Timing(
            retry_first=0.02, unreachable_max=0.05, retry_on_change=0.05, suspect_delay=0.02
        )
        self.loop = Loop(
            source=self,
            reconciler=Reconciler(
                backends=self.facilities,
                read_facts=self._facts,
                compile_desired=self._compile,
                config=Config(node_name=NODE),
            ),
            reporter=self.reporter,
            timing=self.timing,
        )
        self._thread = threading.Thread(target=self.loop.run, daemon=True)

    def _changed(self) -> None:
        self.loop.changed()

    def _compile(
        self, snapshot: Snapshot, facts: Facts, config: Config, previous: Compiled | None = None
    ) -> StandIn:
        return self.compile(snapshot, facts, config, previous)

    def _facts(self) -> Facts:
        if self.facts_error is not None:
            raise self.facts_error
        return Facts()

    def take(self) -> Snapshot:
        """The snapshot."""
        return self.inbox.take()

    def want(self, kinds: frozenset[Kind]) -> None:
        """Remember what was asked for."""
        self.wanted.append(kinds)

    def list_all(self, clusters: int = 3, gateways: Sequence[RawObject] = ()) -> None:
        """Tell the complete input: a Node and so many clusters."""
        self.inbox.replace(Kind.NODE, [node()])
        self.inbox.replace(Kind.GATEWAY, list(gateways) or [gateway()])
        self.inbox.replace(Kind.CLUSTER_INFO_IMPORT, [cluster(number) for number in range(clusters)])

    def tell(self, kind: Kind, type_: str, obj: RawObject) -> None:
        """Tell one change."""
        self.inbox.apply(kind, Event(type_, obj))

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
            assert time.monotonic() < deadline, f"not so within {seconds} s: {self.loop.report}"
            time.sleep(0.002)

    def settled(self) -> bool:
        """Whether the dataplane equals all input told so far."""
        return not self.loop.pending and self.loop.report.converged

    @property
    def held(self) -> dict[Backend, dict[ResourceKey, Resource]]:
        """What all facilities hold."""
        return {name: dict(facility.held) for name, facility in self.facilities.items()}

    @property
    def applied(self) -> list[Step]:
        """All steps done."""
        return [step for facility in self.facilities.values() for step in facility.applied]
