"""Gateway, tables AdmitService, Service and UnDnat: translation of exported Services, and of their replies.

All gateways of a cluster build the same flows and groups, so gateways with the same view of liveness select the
same endpoint for a connection. `lookup` handles connections that move between gateways with different views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flows import fields as f
from flows.actions import (
    Action,
    Actions,
    Ct,
    Meter,
    Move,
    Nat,
    SetField,
    ToController,
    ToGroup,
    set_bits,
    set_whole,
)
from flows.declare import GroupKind
from flows.fields import Term, destination_in, exact, source_in
from flows.flow import Bucket, Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import bucket_ids, nested_bucket, select_group, watching_bucket
from flows.pipeline.values import Env, LocalService, RemoteCluster, ServiceEndpoint

LabelWrites = tuple[SetField | Move, ...]  # writes to the label of a connection, in addition to the Service

# A packet of a connection that this gateway has translated before.
_CONTINUE: Actions = (set_bits(r.TRANSLATED, 1), *e.WITH_SERVICE_ID, e.goto(t.CLIENT))


def base(env: Env) -> Iterator[Flow]:
    """Process connections to Services; drop those to Services that are not exported.

    A packet of a translated connection that no flow of a Service lets through (`connections`) has lost its reason.
    It goes to the agent, which deletes the connection; until then its packets are dropped.

    Conntrack of the userspace datapath changes the port of a client if the port was used a moment ago. It then
    assigns replies to another client that really has the new port to the first client's connection. So in that
    datapath replies are un-translated by the Service's ID first, and conntrack un-translates only other packets:
    ICMP errors, and packets of removed endpoints. Clients of Services that share endpoints may keep the changed
    port (`userspace`), so there conntrack comes first.
    """
    limit = () if env.ended_meter is None else (Meter(env.ended_meter),)
    ended = d.COOKIES.cookie(d.FOR_CONNECTION)
    for family in r.FAMILIES:
        yield e.flow(t.ADMIT_SERVICE, d.ELSE, (family,), e.goto(t.SERVICE))
        yield from e.limited(env, t.ADMIT_SERVICE, (family, e.NEW, r.LABEL_SERVICE.is_(0)), t.SERVICE)
        # These have no port. Without the first fragment, the later ones are useless.
        for portless in (exact(f.IP_PROTO, f.IP_ICMP), e.LATER):
            yield e.flow(t.SERVICE, d.EXACT + 2, (family, e.DNATED, portless), *_CONTINUE)
        to_agent = (*limit, ToController(r.ENDED_HEAD))
        yield d.PIPELINE.flow(t.SERVICE, d.EXACT, (family, e.DNATED), to_agent, cookie=ended)
        yield e.drop(t.SERVICE, d.ELSE, (family, e.NEW), d.DROP_NOT_EXPORTED)
        # Later fragments have no ports, so conntrack would wait for them in vain.
        yield e.drop(t.SERVICE, d.EXACT - 1, (family, e.NEW, e.FRAGMENT), d.DROP_NOT_EXPORTED)
        yield d.PIPELINE.flow(t.UN_DNAT, d.NORMAL, (family, e.REPLY), to_agent, cookie=ended)


def cluster(c: RemoteCluster) -> Iterator[Flow]:
    """Limit packets of ended connections by a meter of the cluster.

    Otherwise one cluster could use up the rate at which connections of all others end (`base`).
    """
    for family in r.FAMILIES:
        if c.ask_meter is not None:
            ended, to_agent = (
                (family, e.DNATED, r.CLUSTER.is_(c.id)),
                (Meter(c.ask_meter), ToController(r.ENDED_HEAD)),
            )
            cookie = d.COOKIES.cookie(d.FOR_CONNECTION)
            yield d.PIPELINE.flow(t.SERVICE, d.EXACT + 1, ended, to_agent, cookie=cookie)


def new_connections(s: LocalService) -> tuple[Term, ...]:
    """Return the conditions on packets of new or unknown connections to the Service."""
    service_port = exact(f.PORTS_DST[s.protocol], s.port)
    return (exact(f.IP_PROTO, s.protocol), *destination_in(s.address), service_port, e.NEW)


def write_service_id(s: LocalService) -> tuple[Action, ...]:
    """Return the actions that write the Service's ID into the packet, for the endpoint's Node."""
    return (set_bits(r.TRANSLATED, 1), set_whole(f.ETH_SRC, r.MAC_SERVICE | s.id))


def assign_endpoint(s: LocalService) -> tuple[Action, ...]:
    """Return the actions that assign a connection an endpoint."""
    return (*write_service_id(s), ToGroup(d.GROUP_SERVICE.group_id(s.id)))


def connections(s: LocalService) -> Iterator[Flow]:
    """Let packets of translated connections through while their reason lasts.

    TCP connections last as long as the export, as with kube-proxy: a Pod that is no endpoint any more may finish
    its work. Other protocols have no end, so a client that keeps its port would stay for ever. Their connections
    last while an EndpointSlice lists the endpoint.

    Not "established": the userspace datapath translates UDP packets, but considers them new until a reply.
    """
    cookie = d.COOKIES.cookie(d.FOR_CONNECTION, s.id)
    of_service = (e.DNATED, r.LABEL_SERVICE.is_(s.id), exact(f.IP_PROTO, s.protocol))
    if s.protocol == f.IP_TCP:
        for family in r.FAMILIES:
            yield d.PIPELINE.flow(t.SERVICE, d.EXACT + 2, (family, *of_service), _CONTINUE, cookie=cookie)
        return
    for endpoint in sorted({*s.endpoints, *s.old_endpoints}):
        destination = (*destination_in(endpoint.address), exact(f.PORTS_DST[s.protocol], endpoint.port))
        terms = (*of_service, *destination)
        yield d.PIPELINE.flow(t.SERVICE, d.EXACT + 2, terms, _CONTINUE, cookie=cookie)


def service(s: LocalService) -> Iterator[Flow]:
    """Assign new connections an endpoint."""
    terms = new_connections(s)
    if not s.endpoints:
        yield e.drop(t.SERVICE, d.NORMAL, terms, d.DROP_NO_ENDPOINT, s.id)
        return
    yield e.flow(t.SERVICE, d.NORMAL, terms, *assign_endpoint(s))


def service_replies(env: Env, s: LocalService) -> Iterator[Flow]:
    """Restore the Service's address in replies of endpoints.

    Replies of a connection whose Service is not exported go to the agent (`base`): a server may go on sending to a
    client that is silent.
    """
    untranslate: Action = e.goto(t.ROUTE)
    if env.userspace_conntrack:
        untranslate = Ct(env.zone(r.ZONE_SERVICE), table=t.ROUTE.number, nat=Nat())
    for family in r.FAMILIES:
        of_service = (family, e.REPLY, r.LABEL_SERVICE.is_(s.id))
        yield e.flow(t.UN_DNAT, d.NORMAL + 1, of_service, *e.UNTRANSLATED, untranslate)
        if env.userspace_conntrack:  # the ports of first fragments must not part them from the others
            fragments = (*of_service, e.FRAGMENT)
            yield e.flow(t.UN_DNAT, d.EXACT + 1, fragments, *e.UNTRANSLATED, untranslate)
    by_id_first = env.userspace_conntrack and not s.shares_endpoints
    if s.endpoints or s.old_endpoints:
        yield from _un_dnat_by_id(s, d.EXACT if by_id_first else d.ELSE)


def endpoint_groups(env: Env, s: LocalService, label_writes: LabelWrites) -> Iterator[Group]:
    """Yield the groups that assign a new connection its endpoint."""
    actions = {endpoint: (commit_to_endpoint(env, s, endpoint, label_writes),) for endpoint in s.endpoints}
    yield from endpoint_selection(s, (d.GROUP_ENDPOINTS, d.GROUP_SERVICE), actions)


def commit_to_endpoint(env: Env, s: LocalService, endpoint: ServiceEndpoint, label_writes: LabelWrites) -> Ct:
    """Return the ct action that commits a connection to the Service with an endpoint."""
    nat = Nat("dst", endpoint.address, endpoint.port)
    writes = (set_bits(r.LABEL_SERVICE, s.id), *label_writes)
    return Ct(env.zone(r.ZONE_SERVICE), t.CLIENT.number, commit=True, nat=nat, exec_=writes)


def endpoint_selection(
    s: LocalService,
    kinds: tuple[GroupKind, GroupKind],
    actions: Mapping[ServiceEndpoint, Actions],
    resort: Actions | None = None,
) -> Iterator[Group]:
    """Yield the groups that select an endpoint by a hash of the connection, or of the client's address only.

    `kinds`: the kind of the group of live endpoints, if it is needed, and of the group that flows refer to.
    `actions`: by endpoint. Endpoints on dead Nodes (BFD) are not selected. If all Nodes look dead, which may be a
    false alarm, the actions `resort` are executed; None: those of the first endpoint.
    """
    live_id, group_id = (kind.group_id(s.id) for kind in kinds)
    tunnels = {endpoint.ofport for endpoint in s.endpoints}
    ids = bucket_ids(map(endpoint_name, s.endpoints))
    numbered = {ids[endpoint_name(endpoint)]: endpoint for endpoint in s.endpoints}
    buckets = tuple(
        Bucket(number, actions[endpoint], watch_port=endpoint.ofport if len(tunnels) > 1 else None)
        for number, endpoint in sorted(numbered.items())
    )
    if None in tunnels or len(tunnels) == 1:
        yield select_group(group_id, buckets, _hash_fields(s))
        return
    yield select_group(live_id, buckets, _hash_fields(s))
    last = watching_bucket(1, None, *(resort or buckets[0].actions))
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, (nested_bucket(0, live_id), last)))


def endpoint_name(endpoint: ServiceEndpoint) -> str:
    """Return the name from which an endpoint's bucket ID is derived (`groups.bucket_ids`)."""
    return f"{endpoint.address} {endpoint.port}"


def _hash_fields(s: LocalService) -> tuple[f.HashField, ...]:
    source, destination = (f.IPV4_SRC, f.IPV4_DST) if s.address.version == 4 else (f.IPV6_SRC, f.IPV6_DST)
    ports = (f.PORTS_SRC[s.protocol], f.PORTS_DST[s.protocol])
    fields = (source,) if s.client_ip_affinity else (source, destination, *ports)
    return tuple(f.HashField(field, field.full_mask) for field in fields)


def _un_dnat_by_id(s: LocalService, priority: int) -> Iterator[Flow]:
    """Un-translate replies of connections that a lost gateway translated: without state, for endpoints only.

    The conntrack state does not matter: new (loose pick-up) or invalid (an unexpected SYN+ACK or RST). In the
    userspace datapath it may also be invalid for a connection that another gateway has forwarded for a while, so
    that its TCP window is beyond the one stored here.
    """
    source = f.IPV4_SRC if s.address.version == 4 else f.IPV6_SRC
    source_port = f.PORTS_SRC[s.protocol]
    undo = (set_whole(source, int(s.address)), set_whole(source_port, s.port))
    reply = (exact(f.IP_PROTO, s.protocol), r.SERVICE_ID.is_(s.id))
    service_address = ServiceEndpoint(address=s.address, port=s.port)
    for sender, rewrite in (
        (service_address, ()),
        *((endpoint, undo) for endpoint in sorted({*s.endpoints, *s.old_endpoints})),
    ):
        terms = (*reply, *source_in(sender.address), exact(source_port, sender.port))
        yield e.flow(t.UN_DNAT, priority, terms, *rewrite, *e.UNTRANSLATED, e.goto(t.ROUTE))
