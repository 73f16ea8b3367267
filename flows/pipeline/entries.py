"""Constructors of flows, and the conditions and actions that several steps of the packet share."""

from __future__ import annotations

from collections.abc import Iterator

from flows import actions as act
from flows import fields as f
from flows.actions import Ct, Goto, Move, Nat, ToGroup, set_bits, set_whole
from flows.declare import Category, PipelineTable
from flows.fields import Term, ct_state
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env

# A packet keeps its kernel mark (skb->mark) through encapsulation and decapsulation (skb_scrub_packet in
# net/core/skbuff.c clears it between namespaces only). No mark, of mcagent or a CNI, must route tunnel packets.
UNMARKED = set_whole(f.PKT_MARK, 0)
UNKNOWN = set_whole(f.TUN_ID, r.IDENTITY_UNKNOWN)
# From the host or a remote cluster: no Node of this cluster has set the label identity.
FOREIGN = (UNMARKED, UNKNOWN)
PLAIN = set_whole(f.ETH_DST, r.MAC_PLAIN)
AS_TRANSLATED = set_whole(f.ETH_DST, r.MAC_TRANSLATED)
AS_REPLY = (set_whole(f.ETH_DST, r.MAC_REPLY), set_bits(r.REPLY, 1))
# The ID of the connection's Service is written if conntrack has it; un-translation removes it from the packet.
WITH_SERVICE_ID = (set_whole(f.ETH_SRC, r.MAC_SERVICE), Move(r.LABEL_SERVICE, r.SERVICE_ID))
UNTRANSLATED = (set_whole(f.ETH_SRC, r.HOST_MAC), *AS_REPLY)

FROM_HOST, FROM_NODE, FROM_GATEWAY, FROM_REMOTE, FROM_ANSWER = (r.ORIGIN.is_(n) for n in (1, 2, 3, 4, 5))
NEW, ESTABLISHED = ct_state("+new-rpl+trk"), ct_state("+est-rpl+trk")
REQUEST, REPLY = ct_state("-new-rpl-inv+trk"), ct_state("-inv+rpl+trk")
IN_REPLY = ct_state("+rpl+trk")  # with ICMP errors and invalid packets
# A translated request that conntrack considers a reply: conntrack was lost, and the server has sent first since.
REVERSED = ct_state("-rel-inv+rpl+trk")
FRAGMENT = f.Term(f.IP_FRAG, f.FRAG_ANY, f.FRAG_ANY)  # the first one, too
FIRST, LATER, WHOLE = (
    f.Term(f.IP_FRAG, value, f.FRAG_ANY | f.FRAG_LATER) for value in (f.FRAG_ANY, f.FRAG_ANY | f.FRAG_LATER, 0)
)
# ICMP errors, by the direction of the connection that they quote.
RELATED_REQUEST, RELATED_REPLY = ct_state("+rel-rpl+trk"), ct_state("+rel+rpl+trk")
UNRELATED = ct_state("-rel+trk")
INVALID, TRACKED, DNATED = ct_state("+inv+trk"), ct_state("+trk"), ct_state("+trk+dnat")
# The same as INVALID, in the form required for a flow that commits (check_CT in OVS' lib/ofp-actions.c).
NO_STATE = ct_state("-new-est-rel-rpl+trk")
INVALID_SNATED = ct_state("+inv+trk+snat")  # of a connection that the userspace datapath has translated

# The marks that zone ARRIVAL stores for a connection of a remote cluster, by whether a Service was translated. The
# Service is stored with the mark and not compared itself, since it never changes during a connection.
_MARKS = (
    Move(r.INGRESS_PORT, r.MARK_PORT),
    Move(r.TRANSLATED, r.MARK_TRANSLATED),
    Move(r.CLUSTER, r.LABEL_CLUSTER),
)
REMEMBER = {0: _MARKS, 1: (*_MARKS, Move(r.SERVICE_ID, r.LABEL_SERVICE))}

LOCAL_GATEWAYS = d.GROUP_GATEWAYS.group_id(0)
TO_LOCAL_GATEWAY = ToGroup(LOCAL_GATEWAYS)


def mac(value: int) -> Term:
    """Return the condition on the destination MAC."""
    return f.exact(f.ETH_DST, value)


def goto(table: PipelineTable) -> Goto:
    """Return the action that continues in a table."""
    return Goto(table.number)


def flow(table: PipelineTable, priority: int, terms: tuple[Term, ...], *actions: act.Action) -> Flow:
    """Build a flow of the pipeline without a cookie; `owners` adds the owner's."""
    return d.PIPELINE.flow(table, priority, terms, actions)


def limited(
    env: Env, table: PipelineTable, new_connection: tuple[Term, ...], following: PipelineTable
) -> Iterator[Flow]:
    """Pass packets that would create a conntrack entry through the cluster's meter, if connections are limited.

    Conntrack considers UDP packets new until a reply arrives, so `new_connection` also says that the packet has no
    entry yet.
    """
    if env.connections_limited:
        yield flow(table, d.NORMAL, new_connection, act.Resubmit(t.NEW_CONNECTIONS.number), goto(following))


def drop(table: PipelineTable, priority: int, terms: tuple[Term, ...], why: Category, number: int = 0) -> Flow:
    """Build a flow that drops, with a cookie that has the reason."""
    return d.PIPELINE.flow(table, priority, terms, act.DROP, cookie=d.COOKIES.cookie(why, number))


def un_dnat(env: Env) -> Ct:
    """Return the ct action that undoes this gateway's translation; on userspace only a look-up (`service`)."""
    return Ct(env.zone(r.ZONE_SERVICE), table=t.UN_DNAT.number, nat=None if env.userspace_conntrack else Nat())
