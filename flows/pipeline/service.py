"""Gateway, tables AdmitService, Service and UnDnat: exported Services are translated, and their replies back.

Every gateway of a cluster builds the same, so that gateways which see the same Nodes alive choose the same
endpoint for a connection. `lookup` handles connections that move between gateways which do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flows import fields as f
from flows.actions import Action, Actions, Ct, Meter, Move, Nat, SetField, ToGroup, set_bits, set_whole
from flows.declare import GroupKind
from flows.fields import MatchField, Term, destination_in, exact, source_in
from flows.flow import Bucket, Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import bucket_ids, passing_on, select, watching
from flows.pipeline.values import Env, LocalService, RemoteCluster, ServiceEndpoint

Remember = tuple[SetField | Move, ...]  # what the label of a connection keeps beside the Service


def base(env: Env) -> Iterator[Flow]:
    """What every connection to a Service does; one that is not exported is dropped.

    The userspace datapath's conntrack moves a client to another port when its own was used a moment ago, and takes
    replies to whoever really has that port for the first one's. There the Service's ID comes first, and conntrack
    translates only what else has to do with a connection: ICMP errors, and what an endpoint sends that is none any
    more. Of Services that share endpoints clients may keep such a port (`userspace`): conntrack comes first.
    """
    undone: Action = e.goto(t.ROUTE)
    if env.userspace_conntrack:
        undone = Ct(env.zone(r.ZONE_SERVICE), table=t.ROUTE.number, nat=Nat())
    for family in r.FAMILIES:
        yield e.flow(t.ADMIT_SERVICE, d.ELSE, (family,), e.goto(t.SERVICE))
        # Not "established": the userspace datapath translates, but calls a UDP connection new until a reply.
        known = (set_bits(r.TRANSLATED, 1), *e.WITH_SERVICE_ID)
        yield e.flow(t.SERVICE, d.EXACT, (family, e.DNATED), *known, e.goto(t.CLIENT))
        yield e.drop(t.SERVICE, d.ELSE, (family, e.NEW), d.DROP_NOT_EXPORTED)
        yield e.flow(t.UN_DNAT, d.NORMAL, (family, e.REPLY), *e.UNTRANSLATED, undone)


def cluster(c: RemoteCluster) -> Iterator[Flow]:
    """What would become a new entry of conntrack passes the cluster's meter."""
    if c.meter is not None:
        for family in r.FAMILIES:
            terms = (family, e.NEW, r.LABEL_SERVICE.is_(0), r.CLUSTER.is_(c.id))
            yield e.flow(t.ADMIT_SERVICE, d.NORMAL, terms, Meter(c.meter), e.goto(t.SERVICE))


def new_connections(s: LocalService) -> tuple[Term, ...]:
    """Return the condition on what begins a connection to the Service, or continues one that nobody knows."""
    service_port = exact(f.PORTS_DST[s.protocol], s.port)
    return (exact(f.IP_PROTO, s.protocol), *destination_in(s.address), service_port, e.NEW)


def with_id(s: LocalService) -> tuple[Action, ...]:
    """Return the actions that tell the Node of which Service a packet is."""
    return (set_bits(r.TRANSLATED, 1), set_whole(f.ETH_SRC, r.MAC_SERVICE | s.id))


def service(s: LocalService) -> Iterator[Flow]:
    """New connections get an endpoint."""
    terms = new_connections(s)
    if not s.endpoints:
        yield e.drop(t.SERVICE, d.NORMAL, terms, d.DROP_NO_ENDPOINT, s.id)
        return
    yield e.flow(t.SERVICE, d.NORMAL, terms, *with_id(s), ToGroup(d.GROUP_SERVICE.group_id(s.id)))


def replies(env: Env, s: LocalService) -> Iterator[Flow]:
    """Replies from endpoints get the Service's address back."""
    by_id_first = env.userspace_conntrack and not s.shares_endpoints
    if s.endpoints or s.old_endpoints:
        yield from _un_dnat_by_id(s, d.EXACT if by_id_first else d.ELSE)


def endpoint_groups(env: Env, s: LocalService, remember: Remember) -> Iterator[Group]:
    """Yield the groups that give a new connection its endpoint."""
    actions = {endpoint: (translate(env, s, endpoint, remember),) for endpoint in s.endpoints}
    yield from choice(s, (d.GROUP_ENDPOINTS, d.GROUP_SERVICE), actions)


def translate(env: Env, s: LocalService, endpoint: ServiceEndpoint, remember: Remember) -> Ct:
    """Return the pass through conntrack that commits a connection of the Service to an endpoint."""
    nat = Nat("dst", endpoint.address, endpoint.port)
    keep = (set_bits(r.LABEL_SERVICE, s.id), *remember)
    return Ct(env.zone(r.ZONE_SERVICE), t.CLIENT.number, commit=True, nat=nat, exec_=keep)


def choice(
    s: LocalService,
    kinds: tuple[GroupKind, GroupKind],
    actions: Mapping[ServiceEndpoint, Actions],
    resort: Actions | None = None,
) -> Iterator[Group]:
    """Yield the groups that choose an endpoint by a hash of the connection, or of the client alone.

    `kinds`: of the group of endpoints on live Nodes, where there is one, and of the group that is used. `actions`:
    of each of the Service's endpoints. Endpoints on Nodes that are dead (BFD) are not chosen. While all Nodes look
    dead, which may be a false alarm, `resort` is done; None: the actions of the first endpoint.
    """
    live_id, group_id = (kind.group_id(s.id) for kind in kinds)
    tunnels = {endpoint.ofport for endpoint in s.endpoints}
    ids = bucket_ids(map(name_of, s.endpoints))
    numbered = {ids[name_of(endpoint)]: endpoint for endpoint in s.endpoints}
    buckets = tuple(
        Bucket(number, actions[endpoint], watch_port=endpoint.ofport if len(tunnels) > 1 else None)
        for number, endpoint in sorted(numbered.items())
    )
    if None in tunnels or len(tunnels) == 1:
        yield select(group_id, buckets, _hashed(s))
        return
    yield select(live_id, buckets, _hashed(s))
    last = watching(1, None, *(resort or buckets[0].actions))
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, (passing_on(0, live_id), last)))


def name_of(endpoint: ServiceEndpoint) -> str:
    """Return what an endpoint's number in groups is derived from (`groups.bucket_ids`)."""
    return f"{endpoint.address} {endpoint.port}"


def _hashed(s: LocalService) -> tuple[MatchField, ...]:
    source, destination = (f.IPV4_SRC, f.IPV4_DST) if s.address.version == 4 else (f.IPV6_SRC, f.IPV6_DST)
    if s.client_ip_affinity:
        return (source,)
    return (source, destination, f.PORTS_SRC[s.protocol], f.PORTS_DST[s.protocol])


def _un_dnat_by_id(s: LocalService, priority: int) -> Iterator[Flow]:
    """Un-translate replies that another gateway translated, which was lost: without state, from endpoints only.

    Whatever conntrack says of them: new (loose pick-up), or invalid (a SYN+ACK or RST out of the blue). The
    userspace datapath un-translates what it calls invalid as well: packets of a connection that went on by another
    gateway for a while, until its window was past the one remembered here.
    """
    source = f.IPV4_SRC if s.address.version == 4 else f.IPV6_SRC
    source_port = f.PORTS_SRC[s.protocol]
    undo = (set_whole(source, int(s.address)), set_whole(source_port, s.port))
    reply = (exact(f.IP_PROTO, s.protocol), r.SERVICE_ID.is_(s.id))
    known = ServiceEndpoint(address=s.address, port=s.port)
    for sender, translate in (
        (known, ()),
        *((endpoint, undo) for endpoint in sorted({*s.endpoints, *s.old_endpoints})),
    ):
        terms = (*reply, *source_in(sender.address), exact(source_port, sender.port))
        yield e.flow(t.UN_DNAT, priority, terms, *translate, *e.UNTRANSLATED, e.goto(t.ROUTE))
