"""Check `masquerade`: sources of Pods that are translated towards other clusters, and chains that may do it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.conntrack import Translated, connections_to
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_addresses
from mcagent.dataplane.nft.observe import NftTable, parse_listing
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.node.routes import lookups
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains, legacy_chains
from mcagent.model.net import Network

CHECK = DoctorCheck(
    name="masquerade",
    order=130,
    summary="connections to other clusters whose source was translated (conntrack), chains before ours",
    causes={
        "Masqueraded": failed(
            "the other cluster sees this Node instead of the Pod: policies do not match, replies may be lost",
            "nft list ruleset | grep -n -i -e masquerade -e snat; take {networks} out of the CNI's masquerade; "
            "then conntrack -D --orig-src POD",
        ),
        "NatBeforeOurs": warning(
            "that chain translates sources before our chain exempts them", "nft list chain {chain}"
        ),
    },
)
_OUR_PRIORITY = 99  # of the chain that keeps the sources of Pods (mcagent.core.fragments.kernel)
_TRANSLATES = re.compile(r"\b(masquerade|snat)\b|-j (MASQUERADE|SNAT)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Connections of Pods to other clusters: how many, and those whose source was translated."""

    count: int = 0
    translated: tuple[Translated, ...] = ()


def published_pods(node: ExaminedNode) -> tuple[Network, ...]:
    """Return the networks of Pods whose source our chain keeps. Raises BackendError."""
    listed = NftTable("ip", node.config.nft_table).list("-y", "-p")
    sets = parse_listing(listed, "ip", node.config.nft_table).sets if listed is not None else []
    return next((nft_set.elements for nft_set in sets if nft_set.name == "mct_pods"), ())


def connections(node: ExaminedNode) -> Connections:
    """Read the connections of Pods to other clusters. Raises BackendError."""
    remote = [result.destination for result in node.read(lookups).lookups]
    with closing(NetlinkSocket()) as netlink:
        own = {entry.address for entry in read_addresses(netlink)}
    count, translated = connections_to(remote, node.read(published_pods), own)
    return Connections(count=count, translated=translated)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate connections and chains that translate the sources of Pods."""
    foreign = node.read(chains)
    wrong = False
    for chain in foreign:
        if (chain.type, chain.hook) == ("nat", "postrouting") and chain.priority < _OUR_PRIORITY:
            rules = [rule for other in foreign if other.table == chain.table for rule in other.rules]
            if chain.family in {"ip", "inet"} and any(map(_TRANSLATES.search, rules)):
                wrong = True
                text = f"chain {chain} has priority {chain.priority}"
                yield CHECK.finding("NatBeforeOurs", text, subject=str(chain), chain=chain)
    reading = node.read(connections)
    if reading.translated:
        pod, remote, source = reading.translated[0]
        share = f"{len(reading.translated)} of {reading.count} connections to other clusters"
        networks = f"what leaves by {node.config.host_port}"
        yield CHECK.finding("Masqueraded", f"{share}: {pod} to {remote} as {source}", networks=networks)
    node.read(legacy_chains)
    if not reading.translated and not wrong:
        yield CHECK.passed(f"{reading.count} connections of Pods to other clusters keep their source")
