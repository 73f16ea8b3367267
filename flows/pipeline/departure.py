"""Table Departure: packets from the host whose direction conntrack (zone ARRIVAL) knows.

Connections opened here are committed and routed; replies go back to the gateway that they last came in by.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, ToGroup, set_bits
from flows.fields import Term, destination_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env, RemoteCluster

_TO_UNDO = (e.AS_TRANSLATED, *e.WITH_SERVICE_ID)
_TRANSLATED, _RAW = r.MARK_TRANSLATED.is_(1), r.MARK_TRANSLATED.is_(0)


def base(env: Env) -> Iterator[Flow]:
    """What any connection does that is opened here, or that another cluster opened."""
    table, route = t.DEPARTURE, e.goto(t.ROUTE)
    opened = (set_bits(r.MARK_OPENED, 1),) if env.userspace_conntrack else ()
    for family in r.FAMILIES:
        yield e.drop(table, d.SPECIAL, (family, e.INVALID), d.DROP_INVALID, table.number)
        # Committed, or the replies would look like connections opened by the other side.
        commit = Ct(env.zone(r.ZONE_ARRIVAL), commit=True, exec_=opened)
        yield e.flow(table, d.NORMAL, (family, e.NEW), commit, route)
        yield e.flow(table, d.NORMAL, (family, e.REQUEST), route)
        yield from by_gateway(env, d.EXACT, (family, e.REPLY))
        yield from by_itself(env, d.NORMAL, (family, e.REPLY))


def by_gateway(env: Env, priority: int, reply: tuple[Term, ...]) -> Iterator[Flow]:
    """Send replies by the gateway that their connection last came in by, or another if that is dead."""
    for port in env.local_gateways:
        marked, prefer = (*reply, r.MARK_PORT.is_(port)), ToGroup(d.GROUP_PREFER.group_id(port))
        yield e.flow(t.DEPARTURE, priority, (*marked, _TRANSLATED), *_TO_UNDO, prefer)
        if not env.gateway:
            yield e.flow(t.DEPARTURE, priority, (*marked, _RAW), *e.AS_REPLY, prefer)


def by_itself(env: Env, priority: int, reply: tuple[Term, ...]) -> Iterator[Flow]:
    """Send replies whose connection came in by this Node itself, or by a gateway that is no more."""
    undo, go_on = (e.un_dnat(env), e.goto(t.ROUTE)) if env.gateway else (e.TO_LOCAL_GATEWAY, e.TO_LOCAL_GATEWAY)
    yield e.flow(t.DEPARTURE, priority, (*reply, _TRANSLATED), *_TO_UNDO, undo)
    yield e.flow(t.DEPARTURE, priority, (*reply, _RAW), *e.AS_REPLY, go_on)


def cluster(env: Env, c: RemoteCluster) -> Iterator[Flow]:
    """Replies to SNATed connections that conntrack has lost: nothing else goes to another cluster's gateways.

    Not committed, or the next request would look like a reply.
    """
    go_on = e.goto(t.ROUTE) if env.gateway else e.TO_LOCAL_GATEWAY
    for address in dict.fromkeys(gateway.address for gateway in c.gateways):
        if not any(address in net for net in c.cidrs):
            yield e.flow(t.DEPARTURE, d.EXACT, (e.NEW, *destination_in(address)), *e.AS_REPLY, go_on)
