"""Tables Deliver and Output: the Node of this cluster that has the destination, and the tunnel to it."""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import DecTtl, OutputBits, set_bits
from flows.fields import destination_in, eth_type_of
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import AS_TRANSLATED, FROM_REMOTE, PLAIN, base_entry, entry, goto
from flows.pipeline.values import LocalNode


def base() -> Iterator[Flow]:
    """By tunnel, with the MAC that says whether a Service was translated."""
    out = OutputBits(r.EGRESS_PORT)
    yield base_entry(t.OUTPUT, d.NORMAL, (r.TRANSLATED.is_(1),), AS_TRANSLATED, out)
    yield base_entry(t.OUTPUT, d.NORMAL, (r.TRANSLATED.is_(0),), PLAIN, out)


def own_node(n: LocalNode, cookie: int) -> Iterator[Flow]:
    """To this Node itself."""
    for net in dict.fromkeys(n.networks):
        terms = (eth_type_of(net), destination_in(net))
        yield entry(cookie, t.DELIVER, d.PREFIX + net.prefixlen, terms, goto(t.ARRIVE))


def node(n: LocalNode, cookie: int) -> Iterator[Flow]:
    """Gateway: from another cluster to another Node."""
    to_node = (DecTtl(), set_bits(r.EGRESS_PORT, n.ofport), goto(t.OUTPUT))
    for net in dict.fromkeys(n.networks):
        terms = (eth_type_of(net), FROM_REMOTE, destination_in(net))
        yield entry(cookie, t.DELIVER, d.PREFIX + net.prefixlen, terms, *to_node)
