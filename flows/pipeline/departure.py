"""Table Departure: packets from the host whose direction conntrack (zone ARRIVAL) knows.

Connections opened here are committed and routed; replies go back to the gateway that they last came in by.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, ToGroup
from flows.fields import destination_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """What any connection does that is opened here, or that another cluster opened."""
    table, route = t.DEPARTURE, e.goto(t.ROUTE)
    for family in r.FAMILIES:
        yield e.drop(table, d.SPECIAL, (family, e.INVALID), d.DROP_INVALID, table.number)
        # Committed, or the replies would look like connections opened by the other side.
        yield e.flow(table, d.NORMAL, (family, e.NEW), Ct(env.zone(r.ZONE_ARRIVAL), commit=True), route)
        yield e.flow(table, d.NORMAL, (family, e.REQUEST), route)
        to_undo = (e.AS_TRANSLATED, *e.WITH_SERVICE_ID)
        translated, raw = r.MARK_TRANSLATED.is_(1), r.MARK_TRANSLATED.is_(0)
        for port in env.local_gateways:
            marked, prefer = r.MARK_PORT.is_(port), ToGroup(d.GROUP_PREFER.group_id(port))
            yield e.flow(table, d.EXACT, (family, e.REPLY, marked, translated), *to_undo, prefer)
            if not env.gateway:
                yield e.flow(table, d.EXACT, (family, e.REPLY, marked, raw), *e.AS_REPLY, prefer)
        # Came in by this Node itself, or by a gateway that is no more.
        undo, go_on = (e.un_dnat(env), route) if env.gateway else (e.TO_LOCAL_GATEWAY, e.TO_LOCAL_GATEWAY)
        yield e.flow(table, d.NORMAL, (family, e.REPLY, translated), *to_undo, undo)
        yield e.flow(table, d.NORMAL, (family, e.REPLY, raw), *e.AS_REPLY, go_on)


def cluster(env: Env, c: RemoteCluster) -> Iterator[Flow]:
    """Replies to SNATed connections that conntrack has lost: nothing else goes to another cluster's gateways.

    Not committed, or the next request would look like a reply.
    """
    go_on = e.goto(t.ROUTE) if env.gateway else e.TO_LOCAL_GATEWAY
    for address in dict.fromkeys(gateway.address for gateway in c.gateways):
        if not any(address in net for net in c.cidrs):
            yield e.flow(t.DEPARTURE, d.EXACT, (e.NEW, *destination_in(address)), *e.AS_REPLY, go_on)
