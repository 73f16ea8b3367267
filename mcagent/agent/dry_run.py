"""One pass without its last part: what the agent would do now. Writes nothing."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial

from mcagent.agent.config import Settings
from mcagent.agent.control_loop.reconciler import Reconciler, own_address
from mcagent.agent.objects import Objects
from mcagent.agent.wiring import facts_reader, make_facilities, make_live
from mcagent.core.compile import compile_desired
from mcagent.core.failover.liveness import LivenessCause
from mcagent.core.failover.observations import gateway_name
from mcagent.core.imported_services import NEEDS
from mcagent.core.local_cluster.topology import SERVICE_NEEDS
from mcagent.core.plan.diff import diff
from mcagent.core.snapshot import Relist, apply_changes
from mcagent.core.whatif.assumptions import World, facts_unseen
from mcagent.dataplane.conntrack import may_be_translated, open_connections
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.sources.apiserver import IN_NAMESPACE, OPTIONAL
from mcagent.kube.sources.lister import Lister
from mcagent.kube.trim import trim
from mcagent.model.config import Config
from mcagent.model.errors import SourceError
from mcagent.model.facts import Facts
from mcagent.model.kinds import object_path
from mcagent.model.net import NetworkSet
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Plan
from mcagent.model.resources import PeerKind

SERVICES = NEEDS | SERVICE_NEEDS
_LIST_TIMEOUT = 10.0  # seconds for a page of a list that is read once


def dry_run(settings: Settings, *, offline: bool, timeout: float) -> tuple[Desired, Plan]:
    """Return the desired state and the steps to it. `offline`: those for a Node that has nothing yet.

    Raises SourceError when the objects are not listed within `timeout` seconds, BackendError when the Node
    cannot be read.
    """
    changed = threading.Event()
    objects = Objects(settings, changed.set)
    if offline:
        facts = facts_unseen(settings.core)
        listed = _listed(settings, objects, changed, facts, timeout)
        desired = compile_desired(listed, facts, settings.core).desired
        return desired, diff({}, desired)
    with closing(make_facilities(settings)) as facilities:
        read_facts = facts_reader(settings, facilities, objects.api_servers)
        snapshot = _listed(settings, objects, changed, read_facts(None), timeout)
        return Reconciler(
            backends=facilities.by_name,
            read_facts=read_facts,
            config=settings.core,
            live=make_live(settings, facilities),
        ).preview(snapshot)


def what_is(settings: Settings, *, offline: bool, timeout: float) -> World:
    """Return what decisions on this Node follow from now; `offline`: without a look at the Node.

    More is read than this Node's role needs: what is asked is about the whole cluster. Raises as `dry_run`.
    """
    changed = threading.Event()
    objects = Objects(settings, changed.set)
    if offline:
        facts = facts_unseen(settings.core)
        return World(snapshot=_listed(settings, objects, changed, facts, timeout, also=SERVICES), facts=facts)
    with closing(make_facilities(settings)) as facilities:
        read_facts = facts_reader(settings, facilities, objects.api_servers)
        snapshot = _listed(settings, objects, changed, read_facts(None), timeout, also=SERVICES)
        live = make_live(settings, facilities)
        facts = read_facts(own_address(snapshot, settings.core.node_name))
        facts = live.facts(facts, snapshot, settings.core, None)
        report = live.report
    lost = (name for name, peer in report.peers.items() if not peer.live and peer.cause is LivenessCause.BFD)
    ports = (report.ports[name] for name in lost if name in report.ports)
    silent = frozenset(gateway_name(port) for port in ports if port.peer_kind is not PeerKind.NODE)
    return World(snapshot=snapshot, facts=facts, silent=silent)


def tracked_connections(settings: Settings, state: NodeState) -> dict[str, dict[str, int]]:
    """Count this Node's open TCP connections by cluster: `opened` here, `translated` of these, `arrived`.

    Raises BackendError.
    """
    found = open_connections((0, settings.core.ct_zone_base))
    translated = set(may_be_translated(found, state))
    counts = {}
    for name, cluster in state.clusters.items():
        there = NetworkSet(cluster.cidrs)
        opened = [one for one in found if one.server in there]
        counts[name] = {
            "opened": len(opened),
            "translated": len(translated.intersection(opened)),
            "arrived": sum(one.client in there for one in found),
        }
    return counts


def read_once(client: Client, config: Config, facts: Facts, known: Snapshot) -> Snapshot:
    """Return `known` and all else that the Node `config.node_name` follows from, of the whole cluster.

    Raises SourceError at the first kind that cannot be listed.
    """
    snapshot = known
    while missing := compile_desired(snapshot, facts, config).missing(snapshot):
        snapshot = apply_changes(snapshot, [relist(client, kind, config.namespace) for kind in sorted(missing)])
    return snapshot


def relist(client: Client, kind: Kind, namespace: str) -> Relist:
    """Return all objects of a kind, as agents read them; none where an API server need not have the kind.

    Raises SourceError.
    """
    path = object_path(kind, namespace if kind in IN_NAMESPACE else "")
    try:
        objects, _ = Lister(client, kind, path, timeout=_LIST_TIMEOUT, keep=partial(trim, kind)).read()
    except ApiRefusalError as error:
        if error.code not in OPTIONAL.get(kind, ()):
            raise
        objects = []
    return Relist(kind=kind, items=objects)


def _listed(
    settings: Settings,
    objects: Objects,
    changed: threading.Event,
    facts: Facts,
    timeout: float,
    *,
    also: frozenset[Kind] = frozenset(),
) -> Snapshot:
    """Return everything that this Node's role needs, and what is asked for beside that, listed once."""
    deadline = time.monotonic() + timeout
    objects.start(write=False)
    try:
        while True:
            changed.clear()
            snapshot = objects.take()
            found = compile_desired(snapshot, facts, settings.core)
            needs = found.needs | also
            state, more = found.desired.state, bool(also)
            objects.want(needs, all_pods=state.all_pods or more, all_services=state.all_services or more)
            missing = found.missing(snapshot) | (also - snapshot.synced) | (also & snapshot.selected)
            if not missing:
                return snapshot
            if not changed.wait(max(0.0, deadline - time.monotonic())):
                reasons = {state.kind: state.error for state in objects.informers()}
                named = "; ".join(f"{kind}: {reasons.get(kind) or 'no answer'}" for kind in sorted(missing))
                raise SourceError(f"not listed within {timeout:g} s: {named}")
    finally:
        objects.stop()
