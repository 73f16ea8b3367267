"""One pass without its writes: what the agent would do now."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace

from mcagent.agent.backends import facts_reader, make_backends, make_failover
from mcagent.agent.config import Settings
from mcagent.agent.control_loop.reconciler import NodeReconciler, own_address, routed_cidrs
from mcagent.agent.object_reader import ObjectReader
from mcagent.core.compile import compile_desired
from mcagent.core.failover.liveness import LivenessCause
from mcagent.core.failover.observations import gateway_name
from mcagent.core.imported_services import NEEDS
from mcagent.core.local_cluster.topology import SERVICE_NEEDS
from mcagent.core.plan.diff import diff
from mcagent.dataplane.conntrack import may_be_translated, open_connections
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.errors import SourceError
from mcagent.model.net import NetworkSet
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Plan
from mcagent.trace.whatif.assumptions import World, facts_unseen

SERVICES = NEEDS | SERVICE_NEEDS


def dry_run(settings: Settings, *, offline: bool, timeout: float) -> tuple[Desired, Plan]:
    """Return the desired state and the steps to it. `offline`: the Node is not read, and counts as empty.

    Raises SourceError when the objects are not listed within `timeout` seconds, BackendError when the Node
    cannot be read.
    """
    changed = threading.Event()
    objects = ObjectReader(settings, changed.set)
    if offline:
        facts = facts_unseen(settings.core)
        listed = _listed(settings, objects, changed, facts, timeout)
        desired = compile_desired(listed, facts, settings.core).desired
        return desired, diff({}, desired)
    with closing(make_backends(settings)) as backends:
        read_facts = facts_reader(settings, backends, objects.api_servers)
        snapshot = _listed(settings, objects, changed, read_facts(None), timeout)
        return NodeReconciler(
            backends=backends.by_name,
            read_facts=read_facts,
            config=settings.core,
            failover=make_failover(settings, backends),
        ).preview(snapshot)


def compare(settings: Settings, desired: Desired) -> Plan:
    """Return the steps from the Node's present state to a desired one. Raises BackendError."""
    with closing(make_backends(settings)) as backends:
        return diff({name: backend.observe() for name, backend in backends.by_name.items()}, desired)


def current_world(settings: Settings, *, offline: bool, timeout: float) -> World:
    """Return the present inputs of this Node's decisions, for what-if questions. `offline`: the Node is not read.

    Reads all Services and Pods, because the questions concern the whole cluster. Raises as `dry_run`.
    """
    changed = threading.Event()
    objects = ObjectReader(settings, changed.set)
    if offline:
        facts = facts_unseen(settings.core)
        return World(snapshot=_listed(settings, objects, changed, facts, timeout, also=SERVICES), facts=facts)
    with closing(make_backends(settings)) as backends:
        read_facts = facts_reader(settings, backends, objects.api_servers)
        snapshot = _listed(settings, objects, changed, read_facts(None), timeout, also=SERVICES)
        failover = make_failover(settings, backends)
        facts = read_facts(own_address(snapshot, settings.core.node_name))
        facts = replace(facts, in_use=routed_cidrs(backends.netlink))
        facts = failover.facts(facts, snapshot, settings.core, None)
        report = failover.report
    lost_tunnels = (
        name for name, peer in report.peers.items() if not peer.live and peer.cause is LivenessCause.BFD
    )
    ports = (report.ports[name] for name in lost_tunnels if name in report.ports)
    silent = frozenset(gateway_name(port) for port in ports if port.peer_kind is not PeerKind.NODE)
    return World(snapshot=snapshot, facts=facts, silent=silent)


def tracked_connections(settings: Settings, state: NodeState) -> dict[str, dict[str, int]]:
    """Count this Node's open TCP connections by cluster and direction.

    `opened`: by this Node. `translated`: those of them that may be source-translated. `arrived`: opened by the
    cluster. Raises BackendError.
    """
    connections = open_connections((0, settings.core.ct_zone_base))
    translated = set(may_be_translated(connections, state))
    counts = {}
    for name, cluster in state.clusters.items():
        remote_networks = NetworkSet(cluster.cidrs)
        opened = [connection for connection in connections if connection.server in remote_networks]
        counts[name] = {
            "opened": len(opened),
            "translated": len(translated.intersection(opened)),
            "arrived": sum(connection.client in remote_networks for connection in connections),
        }
    return counts


def _listed(
    settings: Settings,
    objects: ObjectReader,
    changed: threading.Event,
    facts: Facts,
    timeout: float,
    *,
    also: frozenset[Kind] = frozenset(),
) -> Snapshot:
    """List the kinds that this Node's role needs, and those of `also`, once."""
    deadline = time.monotonic() + timeout
    objects.start(write=False)
    try:
        while True:
            changed.clear()
            snapshot = objects.take()
            compiled = compile_desired(snapshot, facts, settings.core)
            needs = compiled.needs | also
            state, unfiltered = compiled.desired.state, bool(also)
            objects.set_kinds(
                needs, all_pods=state.all_pods or unfiltered, all_services=state.all_services or unfiltered
            )
            missing = compiled.missing(snapshot) | (also - snapshot.synced) | (also & snapshot.selected)
            if not missing:
                return snapshot
            if not changed.wait(max(0.0, deadline - time.monotonic())):
                reasons = {state.kind: state.error for state in objects.informers()}
                named = "; ".join(f"{kind}: {reasons.get(kind) or 'no answer'}" for kind in sorted(missing))
                raise SourceError(f"not listed within {timeout:g} s: {named}")
    finally:
        objects.stop()
