"""Table Departure: packets from the host whose direction conntrack (zone ARRIVAL) knows.

Connections opened here are committed and routed; replies go back to the gateway that they last came in by.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, ToGroup
from flows.fields import destination_is, eth_type_of
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    AS_REPLY,
    AS_TRANSLATED,
    INVALID,
    NEW,
    REPLY,
    REQUEST,
    TO_LOCAL_GATEWAY,
    WITH_SERVICE_ID,
    base_entry,
    drop,
    entry,
    goto,
    un_dnat,
)
from flows.pipeline.values import Env, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """What any connection does that is opened here, or that another cluster opened."""
    table, route = t.DEPARTURE, goto(t.ROUTE)
    for family in r.FAMILIES:
        yield drop(table, d.SPECIAL, (family, INVALID), d.DROP_INVALID, table.number)
        # Committed, or the replies would look like connections opened by the other side.
        yield base_entry(table, d.NORMAL, (family, NEW), Ct(env.zones.arrival, commit=True), route)
        yield base_entry(table, d.NORMAL, (family, REQUEST), route)
        to_undo = (AS_TRANSLATED, *WITH_SERVICE_ID)
        translated, raw = r.MARK_TRANSLATED.is_(1), r.MARK_TRANSLATED.is_(0)
        for port in env.local_gateways:
            marked, prefer = r.MARK_PORT.is_(port), ToGroup(d.GROUP_PREFER.group_id(port))
            yield base_entry(table, d.EXACT, (family, REPLY, marked, translated), *to_undo, prefer)
            if not env.gateway:
                yield base_entry(table, d.EXACT, (family, REPLY, marked, raw), *AS_REPLY, prefer)
        # Came in by this Node itself, or by a gateway that is no more.
        undo, go_on = (un_dnat(env), route) if env.gateway else (TO_LOCAL_GATEWAY, TO_LOCAL_GATEWAY)
        yield base_entry(table, d.NORMAL, (family, REPLY, translated), *to_undo, undo)
        yield base_entry(table, d.NORMAL, (family, REPLY, raw), *AS_REPLY, go_on)


def cluster(env: Env, c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """Replies to SNATed connections that conntrack has lost: nothing else goes to another cluster's gateways.

    Not committed, or the next request would look like a reply.
    """
    go_on = goto(t.ROUTE) if env.gateway else TO_LOCAL_GATEWAY
    for address in dict.fromkeys(gateway.address for gateway in c.gateways):
        family = eth_type_of(address)
        if not any(address in net for net in c.cidrs if eth_type_of(net) == family):
            yield entry(cookie, t.DEPARTURE, d.EXACT, (family, NEW, destination_is(address)), *AS_REPLY, go_on)
