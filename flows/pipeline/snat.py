"""Gateway, tables Snat and SnatState: replies and published Pods keep their address, others take the gateway's."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from flows.actions import Ct, Move, Nat
from flows.fields import Address, eth_type_of, source_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import NEW, REQUEST, base_entry, entry, goto
from flows.pipeline.values import Env, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """Who keeps an address, and how one is given."""
    out = goto(t.EXIT)
    yield base_entry(t.SNAT_TABLE, d.SPECIAL, (r.REPLY.is_(1),), out)
    for network in env.published_pods:
        terms = (eth_type_of(network), r.SNAT.is_(0), source_in(network))
        yield base_entry(t.SNAT_TABLE, d.NORMAL, terms, out)
    look_up = Ct(env.zones.snat, table=t.SNAT_STATE.number, nat=Nat())
    for family in r.FAMILIES:
        own = next((address for address in env.own_gateway_ips if eth_type_of(address) == family), None)
        if own is None:
            continue
        yield base_entry(t.SNAT_TABLE, d.ELSE, (family,), look_up)
        if any(own in network for network in env.published_pods if eth_type_of(network) == family):
            # What the other cluster sends to a gatewayIP is taken for a reply to a SNATed connection: so must be
            # those that this Node opens by itself, even if its address counts as a Pod's.
            yield base_entry(t.SNAT_TABLE, d.EXACT, (family, r.SNAT.is_(0), source_in(ip_network(own))), look_up)
        yield base_entry(t.SNAT_STATE, d.NORMAL, (family, REQUEST), out)
        yield base_entry(t.SNAT_STATE, d.NORMAL, (family, NEW), _translate(env, own))


def cluster(env: Env, c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """A cluster that knows this gateway by another address."""
    if c.snat_address is not None:
        opening = (eth_type_of(c.snat_address), NEW, r.CLUSTER.is_(c.id))
        yield entry(cookie, t.SNAT_STATE, d.EXACT, opening, _translate(env, c.snat_address))


def _translate(env: Env, address: Address) -> Ct:
    """Give a new connection the gateway's address, and remember the port it came from."""
    return Ct(
        env.zones.snat,
        table=t.EXIT.number,
        commit=True,
        nat=Nat("src", address),
        exec_=(Move(r.INGRESS_PORT, r.LABEL_PORT),),
    )
