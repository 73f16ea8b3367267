"""Judges what others' netfilter chains do to our packets: forwarding, firewalls, masquerade, marks. Pure.

Rules are the text of nft(8) or iptables-save(8). A text is no proof: where the rule itself says what it is about
(our port, our device) it counts, otherwise it is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcagent.core.doctor.finding import Finding, fine, found, skipped
from mcagent.core.doctor.observed import ChainSeen, NodeSeen

OUR_NAT = 99  # priority of the chain that keeps the sources of Pods (mcagent.core.fragments.kernel)
_DROPS = re.compile(r"\b(drop|reject)\b|-j (DROP|REJECT)", re.IGNORECASE)
_TRANSLATES = re.compile(r"\b(masquerade|snat)\b|-j (MASQUERADE|SNAT)", re.IGNORECASE)
_ACCEPTS = re.compile(r"\b(accept|jump|goto)\b|-j (?!DROP|REJECT)", re.IGNORECASE)
_MARK = re.compile(r"\bmark\b", re.IGNORECASE)
_NUMBER = re.compile(r"\b0x([0-9a-fA-F]{1,8})\b")
_MANY = 16  # bits: a number with more is a mask of what is kept


def forwarding(seen: NodeSeen) -> Iterator[Finding]:
    """Judge whether the kernel passes packets on between Pods and our device."""
    if seen.kernel.error:
        yield skipped("forwarding", seen.kernel.error)
        return
    bad = False
    if not seen.kernel.ip_forward:
        bad = True
        yield found("ForwardingOff", "net.ipv4.ip_forward is 0", places={"what": "net.ipv4.ip_forward"})
    for chain in seen.filters.chains:
        if chain.hook == "forward" and chain.policy == "drop" and _ipv4(chain) and not _lets_through(chain, seen):
            bad = True
            text = f"chain {chain} has the policy drop"
            yield found("ForwardPolicyDrop", text, subject=str(chain), places={"device": seen.host_port})
    if not bad:
        yield fine("forwarding", "the kernel forwards")


def _ipv4(chain: ChainSeen) -> bool:
    return chain.family in {"ip", "inet"}


def _lets_through(chain: ChainSeen, seen: NodeSeen) -> bool:
    """Tell whether rules of the chain, or of its table's other chains, name our device or the Node's Pods."""
    names = (seen.host_port, *map(str, seen.filters.pods))
    accepting = [
        rule
        for one in seen.filters.chains
        if (one.family, one.table) == (chain.family, chain.table) and one.hook in {"", "forward"}
        for rule in one.rules
        if _ACCEPTS.search(rule)
    ]
    if any(rule.strip() in {"accept", "counter accept"} for rule in chain.rules):
        return True
    return any(name in rule for rule in accepting for name in names) or any(
        _covers(rule, seen) for rule in accepting
    )


def _covers(rule: str, seen: NodeSeen) -> bool:
    """Tell whether a rule names a network that holds this Node's Pods."""
    from ipaddress import ip_network

    for text in re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}/\d{1,2}\b", rule):
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        if any(pods.version == 4 and pods.subnet_of(network) for pods in seen.filters.pods):  # type: ignore[arg-type]
            return True
    return False


def firewall(seen: NodeSeen) -> Iterator[Finding]:
    """Judge rules that drop tunnels, or packets of our device."""
    if seen.filters.error:
        yield skipped("firewall", seen.filters.error)
        return
    bad = False
    port = re.compile(rf"\bdport (?:{seen.tunnel_port}\b|\{{[^}}]*\b{seen.tunnel_port}\b[^}}]*\}})")
    device = re.compile(rf'["\s]{re.escape(seen.host_port)}["\s]')
    opened = any(
        port.search(rule) and not _DROPS.search(rule) for one in seen.filters.chains for rule in one.rules
    )
    for chain in seen.filters.chains:
        for rule in chain.rules:
            if not _DROPS.search(rule):
                continue
            if port.search(rule):
                bad = True
                text = f"chain {chain}: {rule}"
                yield found(
                    "RuleDropsTunnel", text, subject=str(chain), places={"chain": chain, "port": seen.tunnel_port}
                )
            elif device.search(f" {rule} "):
                bad = True
                yield found(
                    "RuleDropsDevice", f"chain {chain}: {rule}", subject=str(chain), places={"chain": chain}
                )
        # The userspace datapath takes packets before netfilter sees them.
        if (chain.hook, chain.policy) == ("input", "drop") and not opened and seen.switch.datapath == "system":
            bad = True
            text = f"chain {chain} has the policy drop"
            yield found("InputPolicyDrop", text, subject=str(chain), places={"port": seen.tunnel_port})
    if not bad:
        yield fine("firewall", "no foreign rule drops tunnels or packets of our device")


def masquerade(seen: NodeSeen) -> Iterator[Finding]:
    """Judge who translates the sources of Pods."""
    filters = seen.filters
    bad = False
    if filters.masqueraded:
        bad = True
        pod, remote, source = filters.masqueraded[0]
        many = f"{len(filters.masqueraded)} of {filters.connections} connections to other clusters"
        text = f"{many}: {pod} to {remote} as {source}"
        yield found("Masqueraded", text, places={"networks": f"what leaves by {seen.host_port}"})
    for chain in filters.chains:
        if (chain.type, chain.hook) == ("nat", "postrouting") and chain.priority < OUR_NAT and _ipv4(chain):
            rules = [r for one in filters.chains if one.table == chain.table for r in one.rules]
            if any(_TRANSLATES.search(rule) for rule in rules):
                bad = True
                text = f"chain {chain} has priority {chain.priority}"
                yield found("NatBeforeOurs", text, subject=str(chain), places={"chain": chain})
    if bad:
        return
    if filters.error or filters.conntrack_error:
        yield skipped("masquerade", filters.error or filters.conntrack_error)
    else:
        yield fine("masquerade", f"{filters.connections} connections of Pods to other clusters keep their source")


def marks(seen: NodeSeen) -> Iterator[Finding]:
    """Judge whether somebody else uses our bit of the mark."""
    if seen.filters.error:
        yield skipped("marks", seen.filters.error)
        return
    bit = 1 << seen.mark_bit
    users = {
        f"chain {chain}: {rule}"
        for chain in seen.filters.chains
        for rule in chain.rules
        if _MARK.search(rule) and any(_bits(number) & bit for number in _NUMBER.findall(rule))
    }
    users |= {
        f"rule {rule.priority}: fwmark {rule.fwmark:#x}/{rule.fwmask:#x}"
        for rule in seen.kernel.rules
        if _bits(f"{rule.fwmask:x}") & bit
    }
    for text in sorted(users)[:5]:
        yield found("MarkShared", f"bit {seen.mark_bit} ({bit:#x}): {text}")
    if not users:
        yield fine("marks", f"bit {seen.mark_bit} ({bit:#x}) is ours alone")


def _bits(text: str) -> int:
    """Return the bits that a number of a rule is about: of a mask that keeps others, those that it takes away."""
    number = int(text, 16)
    return number if number.bit_count() <= _MANY else ~number & 0xFFFFFFFF
