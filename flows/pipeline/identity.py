"""Table Identity: whose Pod a packet is from, as the number that policies of its destination know it by.

The number (a label identity) is the VNI of our tunnels from the Node that has the Pod to the one that has the
destination. Only numbers of this Node's Pods are written, and of another cluster only those believed that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import Ct, set_whole
from flows.fields import TUN_ID, Address, exact, source_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env

ANY_CLUSTER = 0


def departing(env: Env) -> Ct:
    """Return how what this Node sends goes on."""
    return Ct(env.zone(r.ZONE_ARRIVAL), table=(t.EGRESS_TIERS if env.identities else t.DEPARTURE).number)


def base(env: Env) -> Iterator[Flow]:
    """Who is not known: what comes from the host is marked already, what another cluster claims is not."""
    if env.identities:
        for family in r.FAMILIES:
            yield e.flow(t.IDENTITY, d.ELSE, (family, e.FROM_HOST), departing(env))
            if env.gateway:
                yield e.flow(t.IDENTITY, d.ELSE, (family, e.FROM_REMOTE), e.UNKNOWN, e.goto(t.UNTRANSLATE))


def pod(env: Env, address: Address, identity: int) -> Iterator[Flow]:
    """From a Pod of this Node."""
    terms = (e.FROM_HOST, *source_in(address))
    yield e.flow(t.IDENTITY, d.NORMAL, terms, set_whole(TUN_ID, identity), departing(env))


def claimed(cluster: int, identities: Iterable[int]) -> Iterator[Flow]:
    """Gateway: the numbers that are believed of a cluster; of any, if nobody says whose they are."""
    of = () if cluster == ANY_CLUSTER else (r.CLUSTER.is_(cluster),)
    for identity in identities:
        for family in r.FAMILIES:
            terms = (family, e.FROM_REMOTE, *of, exact(TUN_ID, identity))
            yield e.flow(t.IDENTITY, d.NORMAL, terms, e.goto(t.UNTRANSLATE))
