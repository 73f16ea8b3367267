"""A small topology for tests of the pipeline: two remote clusters, three Nodes, Services with and without Pods."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from flows import Flow, Group, pipeline
from flows.fields import PROTOCOLS
from mcagent.core.addresses.underlay import mapped_addresses

GATEWAY_IP = ip_address("10.9.0.11")


def env(*, gateway: bool, siblings: tuple[int, ...]) -> pipeline.Env:
    """Return what all parts share; `siblings` are the ports to the (other) gateways."""
    return pipeline.Env(
        gateway=gateway,
        ct_zone_base=28003,
        local_gateways=siblings,
        own_gateway_ips=(GATEWAY_IP,) if gateway else (),
        service_cidrs=(ip_network("10.96.0.0/16"),),
        published_pods=(ip_network("10.10.0.0/16"),),
        userspace_conntrack=True,
        snat_ports=(10000, 32767),
        mtu=1450,
    )


def remote(number: int, *, gateway: bool, snat: bool) -> pipeline.RemoteCluster:
    """Return a remote cluster with two CIDRs and two gateways."""
    gateways = tuple(
        pipeline.RemoteGateway(
            address=ip_address(f"10.9.{number}.{k}"),
            next_hop=pipeline.NextHop(ofport=1000 * number + k) if gateway else None,
        )
        for k in (1, 2)
    )
    cidrs = (ip_network(f"10.{20 + number}.0.0/16"), ip_network(f"10.{120 + number}.0.0/16"))
    mapped = tuple((g.address, next(mapped_addresses(g.address))) for g in gateways)
    return pipeline.RemoteCluster(id=100 + number, cidrs=cidrs, gateways=gateways, snat=snat, mapped=mapped)


def nodes(*, gateway: bool, siblings: tuple[int, ...]) -> list[pipeline.LocalNode]:
    """Return this Node (port 1) and those behind the ports 2 and 3."""
    return [
        pipeline.LocalNode(
            id=k,
            ofport=k,
            gateway=gateway if k == 1 else k in siblings,
            networks=(ip_network(f"10.10.{k}.0/24"), ip_network(f"10.9.0.1{k}/32")),
        )
        for k in (1, 2, 3)
    ]


def service(
    number: int, protocol: str, *, endpoints: int, affinity: bool = False, here: bool = True
) -> pipeline.LocalService:
    """Return a Service at 10.96.0.NUMBER, port 80; `here`: this Node has the first of its endpoints."""
    return pipeline.LocalService(
        id=number,
        address=ip_address(f"10.96.0.{number}"),
        protocol=PROTOCOLS[protocol],
        port=80,
        client_ip_affinity=affinity,
        endpoints=tuple(
            pipeline.ServiceEndpoint(address=ip_address(f"10.10.{k}.9"), port=8080, ofport=None if k == 1 else k)
            for k in range(1 if here else 2, endpoints + (1 if here else 2))
        ),
    )


def base(shared: pipeline.Env) -> pipeline.Entries:
    """Return what every Node has; all gateways of the cluster are alike, and watched."""
    hops = tuple(pipeline.NextHop(ofport=port) for port in shared.local_gateways)
    return pipeline.base(shared, pipeline.NextHopGroup(next_hops=hops))


def parts(*, gateway: bool, siblings: tuple[int, ...] = (3,), snat: bool = False) -> list[pipeline.Entries]:
    """Return all parts of the small topology."""
    shared = env(gateway=gateway, siblings=siblings)
    return [
        base(shared),
        *(pipeline.cluster(shared, remote(number, gateway=gateway, snat=snat)) for number in (1, 2)),
        *(pipeline.node(shared, node) for node in nodes(gateway=gateway, siblings=siblings)),
        pipeline.service(shared, service(5, "tcp", endpoints=3)),
        pipeline.service(shared, service(6, "udp", endpoints=1, affinity=True)),
        pipeline.service(shared, service(8, "tcp", endpoints=2, here=False)),
        pipeline.service(shared, service(7, "sctp", endpoints=0)),
    ]


def flows_of(parts_: list[pipeline.Entries]) -> list[Flow]:
    """Return all flows."""
    return [flow for part in parts_ for flow in part.flows]


def groups_of(parts_: list[pipeline.Entries]) -> list[Group]:
    """Return all groups."""
    return [group for part in parts_ for group in part.groups]


ROLES = [(True, ()), (True, (3,)), (True, (3, 4)), (False, ()), (False, (3,)), (False, (3, 4))]


def texts(part: pipeline.Entries, table: int) -> list[str]:
    """Return the flows of a table as "match -> actions"."""
    return [f"{flow.match_text} -> {flow.actions_text}" for flow in part.flows if flow.table == table]
