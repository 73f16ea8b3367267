"""What `mcagent status` prints of a whole cluster, from objects of its API alone."""

from __future__ import annotations

from mcagent.api.codec import VERSION, CamelRecord


class ComponentState(CamelRecord, frozen=True):
    """A workload of mcagent. `desired`, `ready`: Pods."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    desired: int = 0
    ready: int = 0


class ClusterState(CamelRecord, frozen=True):
    """A cluster of a ClusterSet, as the ClusterSet's conditions have it. `ready` is None if unknown."""

    id: str = ""
    ready: bool | None = None
    since: str = ""
    why: str = ""


class ClusterSetState(CamelRecord, frozen=True):
    """A ClusterSet in which this cluster is a member or the leader (`role`).

    `token`: of a member, when its token of the leader is renewed and expires; "" if it does not say.
    """

    namespace: str = ""
    name: str = ""
    cluster_id: str = ""
    role: str = ""
    ready: bool | None = None
    clusters: tuple[ClusterState, ...] = ()
    token: str = ""


class GatewayState(CamelRecord, frozen=True):
    """A gateway of this cluster. `live`, `tunnels`: its tunnels to other clusters; None if it reports none."""

    node: str = ""
    gateway_ip: str = ""
    internal_ip: str = ""
    node_ready: bool = False
    live: int | None = None
    tunnels: int | None = None


class LinkState(CamelRecord, frozen=True):
    """A link from one cluster to another, as the first one reports it."""

    source: str = ""
    target: str = ""
    live: int = 0
    tunnels: int = 0
    since: str = ""
    why: str = ""
    bytes_per_second: int = 0
    round_trip_micros: int = 0


class OverviewProblem(CamelRecord, frozen=True):
    """A problem. `do`: what to type next."""

    subject: str = ""
    message: str = ""
    do: str = ""
    error: bool = True


class Overview(CamelRecord, frozen=True):
    """The state of a cluster."""

    api_version: str = VERSION
    server: str = ""
    problems: tuple[OverviewProblem, ...] = ()
    cluster_sets: tuple[ClusterSetState, ...] = ()
    components: tuple[ComponentState, ...] = ()
    gateways: tuple[GatewayState, ...] = ()
    links: tuple[LinkState, ...] = ()
    exports: int = 0
    imports: int = 0
