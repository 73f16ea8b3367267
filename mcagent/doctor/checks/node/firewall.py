"""Check `firewall`: foreign rules that drop tunnel packets or packets of our device.

Rules are the text of nft(8) or iptables-save(8). A text is no proof: a rule that names our port or
device counts, any other is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains, legacy_chains
from mcagent.doctor.readings.switch import switch
from mcagent.model.dataplane.facts import DatapathType

CHECK = DoctorCheck(
    name="firewall",
    order=120,
    summary="foreign rules that drop tunnel packets or packets of our device",
    causes={
        "RuleDropsTunnel": failed(
            "a rule on this Node drops tunnel packets",
            "nft list chain {chain}; remove the rule, or accept UDP {port} before it",
        ),
        "RuleDropsDevice": warning("a foreign rule drops packets of our device", "nft list chain {chain}"),
        "InputPolicyDrop": warning(
            "the chain drops packets that no rule accepts, and none accepts UDP {port}: packets of peers are lost",
            "accept UDP {port} in the firewall of this Node (firewall-cmd --add-port={port}/udp, ufw allow "
            "{port}/udp)",
        ),
    },
)
_DROPS = re.compile(r"\b(drop|reject)\b|-j (DROP|REJECT)", re.IGNORECASE)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate rules that drop tunnel packets or packets of our device."""
    findings = [*_findings(node)]
    yield from findings
    node.read(legacy_chains)
    if not findings:
        yield CHECK.passed("no foreign rule drops tunnels or packets of our device")


def _findings(node: ExaminedNode) -> Iterator[CheckFinding]:
    number = node.tunnel_port
    port = re.compile(rf"\bdport (?:{number}|\{{[^{{}}]*\b{number})\b")
    device = re.compile(rf'["\s]{re.escape(node.config.host_port)}["\s]')
    foreign = node.read(chains)
    opened = any(port.search(rule) and not _DROPS.search(rule) for chain in foreign for rule in chain.rules)
    # The userspace datapath takes packets before netfilter sees them.
    filtered = node.read(switch).datapath is not DatapathType.NETDEV and not opened
    for chain in foreign:
        for rule in filter(_DROPS.search, chain.rules):
            reason = "RuleDropsTunnel" if port.search(rule) else "RuleDropsDevice"
            if reason == "RuleDropsTunnel" or device.search(f" {rule} "):
                text = f"chain {chain}: {rule}"
                yield CHECK.finding(reason, text, subject=str(chain), chain=chain, port=number)
        if (chain.hook, chain.policy) == ("input", "drop") and filtered:
            text = f"chain {chain} has the policy drop"
            yield CHECK.finding("InputPolicyDrop", text, subject=str(chain), port=number)
