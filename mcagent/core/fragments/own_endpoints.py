"""nft rules of policies about Services: for those of their endpoints that are Pods of this cluster.

Connections to these endpoints pass neither bridge nor gateway, but the kernel of the client's Node, unless the CNI
forwards them itself (`not_seen_by_kernel`). The chain is in the hook postrouting, which also sees packets that
IPVS sends to an endpoint (by the hook output: ip_vs_nat_xmit in net/netfilter/ipvs/ip_vs_xmit.c): the destination
is the endpoint's address there, and the source still the Pod's (source NAT has priority 100). A packet cannot be
answered in that hook, so Reject drops it. Other rules apply between clusters only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from mcagent.core.local_cluster.pod_sources import CHECKED_BY_CNI
from mcagent.core.policies.pipeline_input import Backends
from mcagent.core.policies.rules import LocalRule
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import NftChain
from mcagent.model.net import Address, Network, overlaps
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.plan import Fragment
from mcagent.model.policies import PROTOCOLS, Direction, Verdict

CHAIN = "mct_own_endpoints"
_LISTED = 500  # addresses in a rule, which is one netlink message
_OWNER = "policy/own-endpoints"
_RULE = re.compile(r"ip saddr ([^a-z]+) ip daddr ([^a-z]+) (\w+) dport (\d+) (counter drop|accept)")
_NAMES = {number: name.lower() for name, number in PROTOCOLS.items()}


def not_seen_by_kernel(own_pods: Iterable[Network], shared_devices: Iterable[tuple[Network, str]]) -> str:
    """Return the CNI that forwards between Pods of the cluster past the kernel's netfilter; "": none known."""
    pods = tuple(own_pods)
    names = {
        CHECKED_BY_CNI[device]
        for network, device in shared_devices
        if device in CHECKED_BY_CNI and any(overlaps(network, own) for own in pods)
    }
    return min(names, default="")


def fragment(
    rules: Mapping[str, tuple[LocalRule, ...]], own_endpoints: Backends, cni: str, config: Config
) -> Fragment:
    """Build the fragment of the chain; empty without such rules, and where the kernel does not see the packets."""
    concerned = [
        rule
        for policy_rules in rules.values()
        for rule in policy_rules
        if rule.direction is Direction.EGRESS and any(service in own_endpoints for service in rule.services)
    ]
    ordered = sorted(concerned, key=lambda rule: (rule.tier == BASELINE, rule.order, rule.key))
    texts = tuple(text for rule in ordered for text in _texts(rule, own_endpoints))
    if not texts or cni:
        return Fragment(owner=_OWNER, resources=())
    chain = NftChain(
        table=config.nft_table,
        name=CHAIN,
        type="filter",
        hook="postrouting",
        priority=0,
        rules=("ct direction reply accept", *texts),
    )
    return Fragment(owner=_OWNER, resources=(chain,))


def is_closed(
    fragments: Mapping[str, Fragment], source: Address, destination: Address, protocol: str, port: int
) -> bool:
    """Tell whether the chain in the fragments of a Node drops a request of a Pod there."""
    chains = fragments[_OWNER].resources if _OWNER in fragments else ()
    for text in (text for chain in chains if isinstance(chain, NftChain) for text in chain.rules):
        match = _RULE.fullmatch(text)
        if match is None or match.group(3, 4) != (protocol, str(port)):
            continue
        sources, destinations = (match[number].strip("{ }").split(", ") for number in (1, 2))
        if str(source) in sources and str(destination) in destinations:
            return match[5] != "accept"
    return False


def _texts(rule: LocalRule, own_endpoints: Backends) -> Iterator[str]:
    """Yield the nft rules of a policy rule: by port, for all its Pods and endpoints."""
    by_port: dict[tuple[int, int], set[Address]] = {}
    for service in rule.services:
        for address, protocol, port in own_endpoints.get(service, ()):
            if address.version == 4:
                by_port.setdefault((protocol, port), set()).add(address)
    verdict = "counter drop" if rule.verdict in (Verdict.DROP, Verdict.REJECT) else "accept"
    pods = [address for address in rule.pods if address.version == 4]
    for (protocol, port), endpoints in sorted(by_port.items()):
        for sources in _lists(pods):
            for destinations in _lists(endpoints):
                yield f"ip saddr {sources} ip daddr {destinations} {_NAMES[protocol]} dport {port} {verdict}"


def _lists(addresses: Iterable[Address]) -> Iterator[str]:
    """Yield sets of addresses as nft lists them: a single one is no set."""
    texts = [str(address) for address in sorted(addresses, key=int)]
    for first in range(0, len(texts), _LISTED):
        batch = texts[first : first + _LISTED]
        yield f"{{ {', '.join(batch)} }}" if len(batch) > 1 else batch[0]
