"""Gateway, tables Untranslate and UnSnat: the kind of a packet, and the Node that opened a SNATed connection."""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, DecTtl, Move, Nat, set_bits
from flows.fields import Term, destination_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env


def base(env: Env) -> Iterator[Flow]:
    """Dispatch packets of remote clusters by destination, and packets of Nodes by the destination MAC."""
    table, route = t.UNTRANSLATE, e.goto(t.ROUTE)
    undo_snat = Ct(env.zone(r.ZONE_SNAT), table=t.UN_SNAT.number, nat=Nat())
    to_service = Ct(env.zone(r.ZONE_SERVICE), table=t.ADMIT_SERVICE.number, nat=Nat())
    for address in env.own_gateway_ips:
        yield e.flow(table, d.SPECIAL, (e.FROM_REMOTE, *destination_in(address)), undo_snat)
    for networks, action in ((env.service_cidrs, to_service), (env.published_pods, e.goto(t.DELIVER))):
        for network in networks:
            terms = (e.FROM_REMOTE, *destination_in(network))
            yield e.flow(table, d.PREFIX + network.prefixlen, terms, action)
    for family in r.FAMILIES:
        for origin in (e.FROM_NODE, e.FROM_GATEWAY):
            yield e.flow(table, d.NORMAL, (family, origin, e.mac(r.MAC_PLAIN)), route)
            yield e.flow(table, d.NORMAL, (family, origin, e.mac(r.MAC_REPLY)), set_bits(r.REPLY, 1), route)
            yield e.flow(table, d.NORMAL, (family, origin, e.mac(r.MAC_TRANSLATED)), e.un_dnat(env))
        yield from replies_to_opener((family, e.REPLY))


def replies_to_opener(reply: tuple[Term, ...]) -> Iterator[Flow]:
    """Send replies to the Node stored in the label of their SNATed connection."""
    yield e.flow(t.UN_SNAT, d.NORMAL, (*reply, r.LABEL_PORT.is_(r.HOST_OFPORT)), e.goto(t.ARRIVE))
    back = Move(r.LABEL_PORT, r.EGRESS_PORT)
    yield e.flow(t.UN_SNAT, d.ELSE, reply, DecTtl(), back, e.goto(t.OUTPUT))
