"""The topology that one Node's dataplane is made for: this cluster, the others, the exported Services.

Puts together the verdicts of `local`, `remote` and `services`, and reuses each while its inputs are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcagent.core.local_cluster.services import Services, build_services
from mcagent.core.local_cluster.topology import NO_PLACES, Local, build_local
from mcagent.core.remote_clusters.settle import Remotes, build_remotes, surroundings_of
from mcagent.core.wireguard.ends import Encryption, build_encryption
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Problem, Severity

NO_SERVICES = Services(ports={}, problems=(), inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything decided about the input. The parts are the previous call's own while they are equal."""

    local: Local
    remotes: Remotes
    services: Services
    encryption: Encryption | None  # None: traffic to other clusters is not encrypted
    source: Address | None  # of packets from this Node's own processes; None when the kernel has to choose
    problems: tuple[Problem, ...]
    inputs: tuple[object, ...]


def build_topology(snapshot: Snapshot, facts: Facts, config: Config, previous: Topology | None = None) -> Topology:
    """Return the topology. Deterministic, and independent of the order in which objects came."""
    inputs = (snapshot.gateways, snapshot.nodes, snapshot.pods, config, snapshot.leaving)
    before = previous.inputs if previous is not None else ()
    if previous is not None and before[3] == config and _unmoved(before, inputs, previous.local):
        local = previous.local
    else:
        local = build_local(snapshot, config, previous.local.places if previous is not None else NO_PLACES)
        if previous is not None and local == previous.local:
            local = previous.local
    remotes = build_remotes(
        snapshot.cluster_infos,
        surroundings_of(local, facts, config, _api_servers(snapshot)),
        local.pod_hosts,
        previous.remotes if previous is not None else None,
    )
    services = NO_SERVICES
    if serves(local, facts):
        known = previous.services if previous is not None and previous.services is not NO_SERVICES else None
        services = build_services(
            *(snapshot, local.service_cidrs, local.networks, local.pod_hosts),
            nodes=local.node_addresses,
            node_cidrs=local.node_cidrs,
            previous=known,
        )
        if local.role == "worker" and services is not known:
            services = replace(services, problems=())  # it knows its own endpoints only; gateways tell
    encryption = build_encryption(
        remotes, local, facts, config, previous.encryption if previous is not None else None
    )
    wireguard = encryption.problems if encryption is not None else ()
    source, source_problems = _source(local, facts)
    parts = (local.problems, remotes.problems, services.problems, snapshot.problems, source_problems, wireguard)
    if previous is not None and parts == before[-1]:
        problems = previous.problems
    else:
        problems = tuple(sorted({problem for part in parts for problem in part}))
    return Topology(
        local=local,
        remotes=remotes,
        services=services,
        encryption=encryption,
        source=source,
        problems=problems,
        inputs=(*inputs, parts),
    )


def serves(local: Local, facts: Facts) -> bool:
    """Tell whether exported Services matter here: to gateways, and to a Node that can lose its conntrack.

    That of the userspace datapath goes with ovs-vswitchd's process; the kernel keeps its own.
    """
    return local.role == "gateway" or (local.role == "worker" and facts.datapath is DatapathType.NETDEV)


# The name that the API server gives the EndpointSlice of its own Service (pkg/controlplane/reconcilers).
API_SERVERS = "default/kubernetes"


def _api_servers(snapshot: Snapshot) -> tuple[Address, ...]:
    """Return the API servers behind the Service `kubernetes`, on Nodes that read EndpointSlices."""
    found = snapshot.endpoint_slices.get(API_SERVERS)
    return () if found is None else tuple(a for endpoint in found.endpoints for a in endpoint.addresses)


def _source(local: Local, facts: Facts) -> tuple[Address | None, tuple[Problem, ...]]:
    """Return this Node's own address; none, with a problem, when the kernel does not have it (it refuses a route
    whose source address is not its own: fib_valid_prefsrc in net/ipv4/fib_semantics.c).
    """
    address = local.own_source
    if address is None or address == local.own_mapped_address or not facts.addresses or address in facts.addresses:
        return address, ()
    problem = Problem(
        subject=f"{Kind.NODE} {local.own.name if local.own is not None else ''}",
        path="status.addresses",
        reason="AddressNotHere",
        message=f"{address} is on no device of this Node: its own processes do not reach other clusters",
        severity=Severity.WARNING,
    )
    return None, (problem,)


def _unmoved(before: tuple[object, ...], now: tuple[object, ...], local: Local) -> bool:
    """Tell whether what `build_local` read is the same: Pods count only where they are needed."""
    if before[0] is not now[0] or before[1] is not now[1] or before[4] is not now[4]:
        return False
    return Kind.POD not in local.needs or before[2] is now[2]
