"""Tables Lookup and LookupResult: mid-connection TCP packets of a connection that a gateway does not know.

A connection to a Service that moves to another gateway already has its endpoint. The hash may select another one
there: liveness or the set of endpoints may have changed since, or this gateway may see them differently. So the
gateway sends the packet to the Node of the endpoint that the hash selects and queries whether that Node has the
connection (conntrack, zone ARRIVAL). The Node returns the packet. If the answer is yes, the gateway commits the
connection and forwards the packet. If it is no, the gateway queries the Nodes of all endpoints, and those without
the connection drop the packet. No Pod receives the packet of another Pod's connection.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows import fields as f
from flows.actions import (
    Action,
    Actions,
    Ct,
    CtClear,
    Meter,
    Output,
    Resubmit,
    SetField,
    ToGroup,
    set_bits,
    set_whole,
)
from flows.declare import PipelineTable
from flows.fields import PORT_CONTROLLER, PORT_IN_PORT, Term, destination_in, exact, tcp_flags
from flows.flow import Bucket, Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import bucket_ids
from flows.pipeline.steps.service import (
    LabelWrites,
    assign_endpoint,
    commit_to_endpoint,
    endpoint_name,
    endpoint_selection,
    new_connections,
    write_service_id,
)
from flows.pipeline.values import Env, LocalService, RemoteCluster, ServiceEndpoint

# The maximal number of copies of a packet. The kernel accepts at most 32 KiB of actions for a packet
# (MAX_ACTIONS_BUFSIZE in Linux' net/openvswitch/flow_netlink.h), and each copy takes about 150 bytes.
MAX_QUERIES = 128

_ANSWERS = (r.MAC_NOT_HERE, r.MAC_HERE)


def base(env: Env) -> Iterator[Flow]:
    """Answer queries. In the userspace datapath the agent restores connections that the kernel still has."""
    query = Ct(env.zone(r.ZONE_ARRIVAL), table=t.LOOKUP.number)
    for family in r.FAMILIES:
        for number, mac in ((1, r.MAC_ASK), (2, r.MAC_ASK_ALL)):
            question = (family, e.FROM_GATEWAY, e.mac(mac))
            yield e.flow(t.ARRIVE, d.EXACT, question, set_bits(r.LOOKUP, number), query)
            if env.gateway:
                yield e.flow(t.ARRIVE, d.EXACT, (family, e.FROM_REMOTE, r.LOOKUP.is_(number)), query)
        yield from _positive_answers(env, t.LOOKUP, family)
        if env.userspace_conntrack:
            yield from _restored(env, family)
        else:
            yield from _negative_answers(env, t.LOOKUP, family)


def _restored(env: Env, family: Term) -> Iterator[Flow]:
    """Commit connections that the agent restores, and look up those that zone ARRIVAL does not have."""
    zone = env.zone(r.ZONE_RESTORED)
    from_agent = (exact(f.IN_PORT, PORT_CONTROLLER), family, e.mac(r.MAC_RESTORE))
    commit = Ct(zone, commit=True, exec_=(set_bits(r.MARK_TRANSLATED, 1),))
    yield e.flow(t.CLASSIFY, d.NORMAL, from_agent, commit)
    yield e.flow(t.LOOKUP, d.ELSE, (family,), Ct(zone, table=t.LOOKUP_RESTORED.number))
    yield from _positive_answers(env, t.LOOKUP_RESTORED, family)
    yield from _negative_answers(env, t.LOOKUP_RESTORED, family)


def _positive_answers(env: Env, table: PipelineTable, family: Term) -> Iterator[Flow]:
    """Answer that this Node has the connection, which then has a mark."""
    for origin, back in _answer_paths(env):
        terms = (family, origin, r.MARK_TRANSLATED.is_(1))
        yield e.flow(table, d.NORMAL, terms, set_whole(f.ETH_DST, r.MAC_HERE), back)


def _negative_answers(env: Env, table: PipelineTable, family: Term) -> Iterator[Flow]:
    """Answer that this Node does not have the connection, if it is the only queried Node."""
    for origin, back in _answer_paths(env):
        terms = (family, origin, r.LOOKUP.is_(1))
        yield e.flow(table, d.ELSE, terms, set_whole(f.ETH_DST, r.MAC_NOT_HERE), back)


def _answer_paths(env: Env) -> Iterator[tuple[Term, Action]]:
    """Yield (origin of the query, action that returns the answer). A gateway may query itself."""
    yield e.FROM_GATEWAY, Output(PORT_IN_PORT)
    if env.gateway:
        yield e.FROM_REMOTE, e.goto(t.LOOKUP_RESULT)


def from_node(ofport: int) -> Iterator[Flow]:
    """Gateway: classify the answers of the Node behind a tunnel."""
    origin = (set_bits(r.ORIGIN, r.ORIGIN_ANSWER), set_bits(r.INGRESS_PORT, ofport))
    for family in r.FAMILIES:
        for mac in _ANSWERS:
            answer = (exact(f.IN_PORT, ofport), family, e.mac(mac))
            yield e.flow(t.CLASSIFY, d.EXACT, answer, e.UNMARKED, *origin, e.goto(t.OWNER))


def cluster(c: RemoteCluster) -> Iterator[Flow]:
    """Gateway: after a negative answer, query all Nodes, limited by the cluster's meter.

    One packet becomes many, so a remote cluster must not control the rate.
    """
    meter: Actions = () if c.ask_meter is None else (Meter(c.ask_meter),)
    query_all = (*meter, set_whole(f.ETH_DST, r.MAC_ASK_ALL), Resubmit(t.LOOKUP_RESULT.number))
    for family in r.FAMILIES:
        unknown = (family, e.mac(r.MAC_NOT_HERE), r.CLUSTER.is_(c.id))
        yield e.flow(t.LOOKUP_RESULT, d.NORMAL, unknown, *query_all)


def service(env: Env, s: LocalService) -> Iterator[Flow]:
    """Gateway: query the Nodes for mid-connection packets of connections that conntrack does not know."""
    endpoints = _all_endpoints(s)
    if s.protocol != f.IP_TCP or not endpoints:
        return
    # Without a selection, continue as after a negative answer.
    query: Actions = (set_whole(f.ETH_DST, r.MAC_NOT_HERE), e.goto(t.LOOKUP_RESULT))
    if _queries_one_first(s):
        query = (ToGroup(d.GROUP_ASK.group_id(s.id)),)
    mid_connection = (*new_connections(s), tcp_flags("-syn"))
    yield e.flow(t.SERVICE, d.NORMAL + 1, mid_connection, *write_service_id(s), *query)
    if s.endpoints:  # The sender's gateway has found that the connection cannot continue; any server resets it.
        ended = (*mid_connection, exact(f.IP_TOS, r.TOS_ENDED))
        yield e.flow(t.SERVICE, d.NORMAL + 2, ended, *assign_endpoint(s))
    of_service = (r.SERVICE_ID.is_(s.id),)
    # Restore the state of a packet from the remote cluster; the Node that returned it may be queried again.
    again = (set_bits(r.ORIGIN, r.ORIGIN_REMOTE), set_bits(r.TRANSLATED, 1), set_whole(f.IN_PORT, 0), CtClear())
    query_all = (*again, ToGroup(d.GROUP_ASK_ALL.group_id(s.id)))
    yield e.flow(t.LOOKUP_RESULT, d.NORMAL, (*of_service, e.mac(r.MAC_ASK_ALL)), *query_all)
    as_sent = (*again, set_bits(r.LOOKUP, 0), *_set_destination(s.address, s.port))
    label_writes: LabelWrites = (r.KEEP_CLIENT_PORT[s.protocol],) if env.userspace_conntrack else ()
    for endpoint in endpoints:
        port = (exact(f.IP_PROTO, s.protocol), exact(f.TCP_DST, endpoint.port))
        tunnel = () if endpoint.ofport is None else (r.INGRESS_PORT.is_(endpoint.ofport),)
        terms = (*of_service, e.mac(r.MAC_HERE), *destination_in(endpoint.address), *port, *tunnel)
        commit = commit_to_endpoint(env, s, endpoint, label_writes)
        yield e.flow(t.LOOKUP_RESULT, d.NORMAL, terms, *as_sent, commit)


def groups(s: LocalService) -> Iterator[Group]:
    """Yield the groups that select the queried Nodes: one, as for a new connection, or those of all endpoints."""
    endpoints = _all_endpoints(s)
    if s.protocol != f.IP_TCP or not endpoints:
        return
    ids = bucket_ids(map(endpoint_name, endpoints))
    numbered = {ids[endpoint_name(endpoint)]: endpoint for endpoint in endpoints}
    buckets = tuple(Bucket(number, _query(2, numbered[number])) for number in sorted(numbered))
    yield d.PIPELINE.group(Group(d.GROUP_ASK_ALL.group_id(s.id), GroupType.ALL, buckets))
    if _queries_one_first(s):
        queries = {endpoint: _query(1, endpoint) for endpoint in s.endpoints}
        query_all = (ToGroup(d.GROUP_ASK_ALL.group_id(s.id)),)
        yield from endpoint_selection(s, (d.GROUP_ASK_LIVE, d.GROUP_ASK), queries, resort=query_all)


def _queries_one_first(s: LocalService) -> bool:
    """Tell whether one Node is queried first: with a single endpoint, all are queried at once."""
    return bool(s.endpoints) and len(_all_endpoints(s)) > 1


def _all_endpoints(s: LocalService) -> tuple[ServiceEndpoint, ...]:
    """Return all endpoints that may have connections; those that get new ones come first."""
    return tuple(dict.fromkeys((*sorted(s.endpoints), *sorted(s.old_endpoints))))[:MAX_QUERIES]


def _query(number: int, endpoint: ServiceEndpoint) -> tuple[Action, ...]:
    return (
        set_bits(r.LOOKUP, number),
        *_set_destination(endpoint.address, endpoint.port),
        Resubmit(t.DELIVER.number),
    )


def _set_destination(address: f.Address, port: int) -> tuple[SetField, SetField]:
    """Return the actions that set the destination of a TCP packet, without connection tracking."""
    field = f.IPV4_DST if address.version == 4 else f.IPV6_DST
    return set_whole(field, int(address)), set_whole(f.TCP_DST, port)
