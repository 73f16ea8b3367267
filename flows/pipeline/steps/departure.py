"""Table Departure: packets of the host, whose direction conntrack (zone ARRIVAL) has determined.

Connections of this Node are committed and routed; replies return to the gateway of their connection's last
request.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, ToGroup, set_bits
from flows.fields import Term
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env

_TO_UNDO = (e.AS_TRANSLATED, *e.WITH_SERVICE_ID)
_TRANSLATED, _RAW = r.MARK_TRANSLATED.is_(1), r.MARK_TRANSLATED.is_(0)


def base(env: Env) -> Iterator[Flow]:
    """Process connections that this Node or a remote cluster opened."""
    table, route = t.DEPARTURE, e.goto(t.ROUTE)
    opened = (set_bits(r.MARK_OPENED, 1),) if env.userspace_conntrack else ()
    for family in r.FAMILIES:
        yield e.drop(table, d.SPECIAL, (family, e.INVALID), d.DROP_INVALID, table.number)
        # Committed; otherwise replies would look like connections of the other side.
        commit = Ct(env.zone(r.ZONE_ARRIVAL), commit=True, exec_=opened)
        yield e.flow(table, d.NORMAL, (family, e.NEW), commit, route)
        # A reply of a connection that conntrack has lost: committed, it would make the next request look like a
        # reply.
        unknown_reply = (family, e.NEW, r.REPLY.is_(1))
        yield e.flow(table, d.EXACT, unknown_reply, *e.AS_REPLY, route if env.gateway else e.TO_LOCAL_GATEWAY)
        yield e.flow(table, d.NORMAL, (family, e.REQUEST), route)
        yield from replies_by_gateway(env, d.EXACT, (family, e.REPLY))
        yield from direct_replies(env, d.NORMAL, (family, e.REPLY))


def replies_by_gateway(env: Env, priority: int, reply: tuple[Term, ...]) -> Iterator[Flow]:
    """Route replies through the gateway of their connection's last request, or another one if that is dead."""
    for port in env.local_gateways:
        marked, prefer = (*reply, r.MARK_PORT.is_(port)), ToGroup(d.GROUP_PREFER.group_id(port))
        yield e.flow(t.DEPARTURE, priority, (*marked, _TRANSLATED), *_TO_UNDO, prefer)
        if not env.gateway:
            yield e.flow(t.DEPARTURE, priority, (*marked, _RAW), *e.AS_REPLY, prefer)


def direct_replies(env: Env, priority: int, reply: tuple[Term, ...]) -> Iterator[Flow]:
    """Route replies of connections that arrived at this Node directly, or through a removed gateway."""
    undo, go_on = (e.un_dnat(env), e.goto(t.ROUTE)) if env.gateway else (e.TO_LOCAL_GATEWAY, e.TO_LOCAL_GATEWAY)
    yield e.flow(t.DEPARTURE, priority, (*reply, _TRANSLATED), *_TO_UNDO, undo)
    yield e.flow(t.DEPARTURE, priority, (*reply, _RAW), *e.AS_REPLY, go_on)
