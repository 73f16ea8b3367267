"""Check `tunnel-nat`: foreign rules that translate packets to a tunnel's address and port.

Rules are the text of nft(8) or iptables-save(8); elements of sets and maps are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network

from mcagent.api.doctor import CheckFinding
from mcagent.core.fragments.tunnel_guard import BFD_PORT
from mcagent.dataplane.nft.observe import NftTable, parse_listing
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains, legacy_chains
from mcagent.model.net import Network, overlaps

CHECK = DoctorCheck(
    name="tunnel-nat",
    order=125,
    summary="foreign rules that translate packets to a tunnel's address and port",
    causes={
        "TranslatesTunnel": warning(
            "the rule is for packets of tunnels: a Service or a program claims them. mcagent keeps them from "
            "translation by netfilter, but not by IPVS or eBPF",
            "nft list chain {chain}; delete the rule, or the Service that it is made from: "
            "kubectl get services -A -o wide | grep {port}",
        ),
    },
)
_TRANSLATES = re.compile(r"\b(dnat|redirect)\b|-j (DNAT|REDIRECT)", re.IGNORECASE)
# In tables that translate: rules of kube-proxy and the CNI jump to a chain of the Service or Pod.
_JUMPS = re.compile(rf"{_TRANSLATES.pattern}|\b(jump|goto|vmap)\b|-j (KUBE|CNI)-", re.IGNORECASE)
_TABLES = ("nat", "kube-proxy")
_DESTINATION = re.compile(r"(?:\bip6? daddr|-d) (\S+)")


def tunnel_addresses(node: ExaminedNode) -> tuple[Network, ...]:
    """Return the addresses at which tunnels end: those of peers and of this Node. Raises BackendError."""
    table = node.config.nft_table
    listings = [(family, NftTable(family, table).list("-y", "-p")) for family in ("ip", "ip6")]
    return tuple(
        network
        for family, text in listings
        if text is not None
        for nft_set in parse_listing(text, family, table).sets
        if nft_set.name == "mct_peers"
        for network in nft_set.elements
    )


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the rules that translate destinations."""
    findings = [*_findings(node)]
    yield from findings
    node.read(legacy_chains)
    if not findings:
        yield CHECK.passed("no foreign rule translates packets of tunnels")


def _findings(node: ExaminedNode) -> Iterator[CheckFinding]:
    ports = {node.tunnel_port, BFD_PORT, *node.config.wireguard_ports}
    numbers = "|".join(map(str, sorted(ports)))
    port = re.compile(rf"\budp\b.{{0,500}}?\bdport (?:\{{[^{{}}]*\b)?({numbers})\b")
    for chain in node.read(chains):
        in_nat = chain.type == "nat" or chain.table.startswith(_TABLES)
        for rule in filter((_JUMPS if in_nat else _TRANSLATES).search, chain.rules):
            match = port.search(rule)
            if match is not None and _concerns(rule, node):
                text = f"chain {chain}: {rule}"
                yield CHECK.finding("TranslatesTunnel", text, subject=str(chain), chain=chain, port=match[1])


def _concerns(rule: str, node: ExaminedNode) -> bool:
    """Tell whether a rule is for a tunnel's address, or for any address."""
    match = _DESTINATION.search(rule)
    if match is None:
        return True
    try:
        destination = ip_network(match[1], strict=False)
    except ValueError:  # a set
        return True
    return any(overlaps(destination, address) for address in node.read(tunnel_addresses))
