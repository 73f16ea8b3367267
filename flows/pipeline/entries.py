"""How flows of the pipeline are made, and the conditions and actions that several steps of the packet share."""

from __future__ import annotations

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
# net/core/skbuff.c clears it between namespaces only). Ours, or a CNI's, must not steer the tunnel's own packets.
UNMARKED = set_whole(f.PKT_MARK, 0)
UNKNOWN = set_whole(f.TUN_ID, r.IDENTITY_UNKNOWN)
# From the host or another cluster: no Node of this cluster has said which Pod it is from.
FOREIGN = (UNMARKED, UNKNOWN)
PLAIN = set_whole(f.ETH_DST, r.MAC_PLAIN)
AS_TRANSLATED = set_whole(f.ETH_DST, r.MAC_TRANSLATED)
AS_REPLY = (set_whole(f.ETH_DST, r.MAC_REPLY), set_bits(r.REPLY, 1))
# The ID of the connection's Service is written where it was remembered; un-translated, a packet loses it.
WITH_SERVICE_ID = (set_whole(f.ETH_SRC, r.MAC_SERVICE), Move(r.LABEL_SERVICE, r.SERVICE_ID))
UNTRANSLATED = (set_whole(f.ETH_SRC, r.HOST_MAC), *AS_REPLY)

FROM_HOST, FROM_NODE, FROM_GATEWAY, FROM_REMOTE, FROM_ANSWER = (r.ORIGIN.is_(n) for n in (1, 2, 3, 4, 5))
NEW, ESTABLISHED = ct_state("+new-rpl+trk"), ct_state("+est-rpl+trk")
REQUEST, REPLY = ct_state("-new-rpl-inv+trk"), ct_state("-inv+rpl+trk")
# Of what a gateway translated, a request: conntrack was lost, and the server spoke first since.
REVERSED = ct_state("-rel-inv+rpl+trk")
INVALID, TRACKED, DNATED = ct_state("+inv+trk"), ct_state("+trk"), ct_state("+trk+dnat")
# The same as INVALID, as a flow has to say it that commits (check_CT in OVS' lib/ofp-actions.c).
NO_STATE = ct_state("-new-est-rel-rpl+trk")
INVALID_SNATED = ct_state("+inv+trk+snat")  # of a connection that the userspace datapath has translated

# What zone ARRIVAL keeps of a connection that another cluster opens, by whether a Service was translated. The
# Service is kept with the mark and not compared by itself: a connection has one as long as it lives.
_MARKS = (Move(r.INGRESS_PORT, r.MARK_PORT), Move(r.TRANSLATED, r.MARK_TRANSLATED))
REMEMBER = {0: _MARKS, 1: (*_MARKS, Move(r.SERVICE_ID, r.LABEL_SERVICE))}

LOCAL_GATEWAYS = d.GROUP_GATEWAYS.group_id(0)
TO_LOCAL_GATEWAY = ToGroup(LOCAL_GATEWAYS)


def mac(value: int) -> Term:
    """Return the condition on the destination MAC."""
    return f.exact(f.ETH_DST, value)


def goto(table: PipelineTable) -> Goto:
    """Return the action that goes on with a table."""
    return Goto(table.number)


def flow(table: PipelineTable, priority: int, terms: tuple[Term, ...], *actions: act.Action) -> Flow:
    """Return a flow of the pipeline. Its cookie is its owner's, who puts it in."""
    return d.PIPELINE.flow(table, priority, terms, actions)


def drop(table: PipelineTable, priority: int, terms: tuple[Term, ...], why: Category, number: int = 0) -> Flow:
    """Return a flow that drops and whose counter says why."""
    return d.PIPELINE.flow(table, priority, terms, act.DROP, cookie=d.COOKIES.cookie(why, number))


def un_dnat(env: Env) -> Ct:
    """Return the pass through conntrack that undoes what this gateway translated.

    On the userspace datapath it only looks the connection up (see `service.base`).
    """
    return Ct(env.zone(r.ZONE_SERVICE), table=t.UN_DNAT.number, nat=None if env.userspace_conntrack else Nat())
