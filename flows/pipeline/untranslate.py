"""Gateway, tables Untranslate and UnSnat: what a packet is, and the Node that a SNATed connection came from."""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, DecTtl, Move, Nat, set_bits
from flows.fields import destination_in, destination_is, eth_type_of
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    FROM_GATEWAY,
    FROM_NODE,
    FROM_REMOTE,
    REPLY,
    base_entry,
    goto,
    mac,
    un_dnat,
)
from flows.pipeline.values import Env


def base(env: Env) -> Iterator[Flow]:
    """From another cluster by destination; from a Node by the MAC that says what it is."""
    table, route = t.UNTRANSLATE, goto(t.ROUTE)
    undo_snat = Ct(env.zones.snat, table=t.UN_SNAT.number, nat=Nat())
    to_service = Ct(env.zones.service, table=t.ADMIT_SERVICE.number, nat=Nat())
    for address in env.own_gateway_ips:
        terms = (eth_type_of(address), FROM_REMOTE, destination_is(address))
        yield base_entry(table, d.SPECIAL, terms, undo_snat)
    for networks, action in ((env.service_cidrs, to_service), (env.published_pods, goto(t.DELIVER))):
        for network in networks:
            terms = (eth_type_of(network), FROM_REMOTE, destination_in(network))
            yield base_entry(table, d.PREFIX + network.prefixlen, terms, action)
    for family in r.FAMILIES:
        for origin in (FROM_NODE, FROM_GATEWAY):
            yield base_entry(table, d.NORMAL, (family, origin, mac(r.MAC_PLAIN)), route)
            yield base_entry(table, d.NORMAL, (family, origin, mac(r.MAC_REPLY)), set_bits(r.REPLY, 1), route)
            yield base_entry(table, d.NORMAL, (family, origin, mac(r.MAC_TRANSLATED)), un_dnat(env))
        here = (family, REPLY, r.LABEL_PORT.is_(r.HOST_OFPORT))
        yield base_entry(t.UN_SNAT, d.NORMAL, here, goto(t.ARRIVE))
        back = Move(r.LABEL_PORT, r.EGRESS_PORT)
        yield base_entry(t.UN_SNAT, d.ELSE, (family, REPLY), DecTtl(), back, goto(t.OUTPUT))
