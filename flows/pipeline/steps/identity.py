"""Table Identity: the label identity of the Pod that sent a packet, for the policies of its destination.

The label identity is the VNI of mcagent's tunnels, from the Node of the sender to the Node of the destination. A
Node writes the identities of its own Pods only, and a gateway accepts from a remote cluster only identities that
the cluster has claimed.
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


def departure_action(env: Env) -> Ct:
    """Return the action that continues with packets of this Node."""
    return Ct(env.zone(r.ZONE_ARRIVAL), table=(t.EGRESS_TIERS if env.identities else t.DEPARTURE).number)


def base(env: Env) -> Iterator[Flow]:
    """Handle unknown senders: Classify has marked packets of the host; mark those of remote clusters."""
    if env.identities:
        for family in r.FAMILIES:
            yield e.flow(t.IDENTITY, d.ELSE, (family, e.FROM_HOST), departure_action(env))
            if env.gateway:
                yield e.flow(t.IDENTITY, d.ELSE, (family, e.FROM_REMOTE), e.UNKNOWN, e.goto(t.UNTRANSLATE))


def pod(env: Env, address: Address, identity: int) -> Iterator[Flow]:
    """Set the label identity of a Pod of this Node."""
    terms = (e.FROM_HOST, *source_in(address))
    yield e.flow(t.IDENTITY, d.NORMAL, terms, set_whole(TUN_ID, identity), departure_action(env))


def claimed(cluster: int, identities: Iterable[int]) -> Iterator[Flow]:
    """Gateway: accept label identities from a cluster, or from any cluster with `ANY_CLUSTER`."""
    from_cluster = () if cluster == ANY_CLUSTER else (r.CLUSTER.is_(cluster),)
    for identity in identities:
        for family in r.FAMILIES:
            terms = (family, e.FROM_REMOTE, *from_cluster, exact(TUN_ID, identity))
            yield e.flow(t.IDENTITY, d.NORMAL, terms, e.goto(t.UNTRANSLATE))
