"""The nft rules that repair the packets that ICMP errors quote. Values only.

The bridge replaces the addresses of gateways and of Pods in packets themselves, but not in the packets that ICMP
errors quote. Rules for gateways replace an address by one with the same checksum (`mapped_addresses`). A prefix
has another checksum, so its rules also write a field of the ICMP header that is 0 and means nothing (RFC 792, RFC
1191): the checksum of the error stays valid. Each side changes its own prefix, so there are two such fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, product

from flows.pipeline.registers import TOS_REPAIRED
from mcagent.core.fragments.tunnel_guard import filter_chain
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import Resource
from mcagent.model.net import Network, PodPrefix
from mcagent.model.node_state import AcceptedCluster

# The fields of a packet that an ICMP error quotes, behind the error's header of 8 bytes (RFC 792).
_SOURCE, _DESTINATION = 160, 192  # bits
_ERRORS = "destination-unreachable, source-quench, redirect, time-exceeded, parameter-problem"
# The third 16 bits of these errors are unused. So are the fourth, except the MTU in "fragmentation needed".
_WITH_UNUSED = "destination-unreachable, source-quench, time-exceeded"
_FIRST_UNUSED, _SECOND_UNUSED = "@th,32,16", "@th,48,16"
_CODE, _TOO_BIG = "@th,8,8", "0x4"  # "fragmentation needed"

_HALF = 16  # bits of an address

QuotedRules = tuple[tuple[str, ...], tuple[str, ...]]  # for errors to the kernel, to the bridge
NO_RULES: QuotedRules = ((), ())


def quoted_rules(cluster: AcceptedCluster) -> QuotedRules:
    """Return the rules that replace the addresses of a cluster's gateways."""
    source, destination = f"@th,{_SOURCE},32", f"@th,{_DESTINATION},32"
    numbers = [(f"0x{int(a):x}", f"0x{int(b):x}") for a, b in cluster.mapped if a != b]
    return (
        tuple(f"{destination} {bridge} {destination} set {kernel}" for bridge, kernel in numbers),
        tuple(f"{source} {kernel} {source} set {bridge}" for bridge, kernel in numbers),
    )


def quoted_prefixes(prefixes: tuple[PodPrefix, ...], clusters: Mapping[str, AcceptedCluster]) -> QuotedRules:
    """Return the rules that replace the prefixes of this cluster's Pods.

    An error "fragmentation needed" has a single unused field. If the other cluster has changed a prefix as well,
    the field has a value that follows from both of its prefixes. Its real one is not known here: it is taken to be
    one of this cluster, since clusters translate Pod CIDRs that others have, too.
    """
    if not prefixes:
        return NO_RULES
    remote = list(dict.fromkeys(cidr for cluster in clusters.values() for cidr in cluster.cidrs))
    pairs = [(p.real, cidr) for p, cidr in product(prefixes, remote) if cidr.prefixlen == p.real.prefixlen]
    before = sorted({0, *(_difference(real, virtual) for real, virtual in pairs)})
    into, out = [], []
    for prefix in prefixes:
        change = _difference(prefix.virtual, prefix.real)
        replace = _replaced(_SOURCE, prefix.virtual, prefix.real)
        into.append(f"{_CODE} != {_TOO_BIG} {_SECOND_UNUSED} 0x0 {replace} {_SECOND_UNUSED} set 0x{change:x}")
        into += [
            f"{_CODE} {_TOO_BIG} {_FIRST_UNUSED} 0x{value:x} {replace} "
            f"{_FIRST_UNUSED} set 0x{(value + change) % 0xFFFF:x}"
            for value in before
        ]
        change = _difference(prefix.real, prefix.virtual)
        replace = _replaced(_DESTINATION, prefix.real, prefix.virtual)
        out.append(f"{_FIRST_UNUSED} 0x0 {replace} {_FIRST_UNUSED} set 0x{change:x}")
    only_with_unused = f"icmp type != {{ {_WITH_UNUSED} }} accept"
    return (only_with_unused, *into), (only_with_unused, *out)


def quoted_addresses(
    config: Config, by_cluster: Mapping[str, QuotedRules], of_pods: QuotedRules = NO_RULES
) -> list[Resource]:
    """Return the chains of these rules.

    Errors to the kernel are changed before it tracks them, errors to the bridge after it has translated them. Only
    those have a code point. The bridge returns others: a CNI has forwarded them by eBPF, past these chains.
    """
    rules_of_all = (*by_cluster.values(), of_pods)
    into, out = (tuple(chain.from_iterable(rules[way] for rules in rules_of_all)) for way in (0, 1))
    if not into:
        return []
    no_error = f"icmp type != {{ {_ERRORS} }} accept"
    return [
        filter_chain(config, "ip", name, hook, f'{direction} != "{config.host_port}" accept', no_error, *rules)
        for name, hook, direction, rules in (
            ("mct_quoted_in", ("prerouting", -300), "iifname", into),
            ("mct_quoted_out", ("postrouting", 300), "oifname", (f"ip dscp set {TOS_REPAIRED >> 2:#x}", *out)),
        )
    ]


def _replaced(start: int, old: Network, new: Network) -> str:
    """Return the condition that an address at a bit of the ICMP message has a prefix, and its replacement.

    Written as nft lists it. A field that nft has a name for would be listed by the name, in a rule with "icmp".
    """
    if old.prefixlen == _HALF:
        field = f"@th,{start},{_HALF}"
        return f"{field} 0x{_number(old) >> _HALF:x} {field} set 0x{_number(new) >> _HALF:x}"
    field, host_and_new = f"@th,{start},32", int(old.hostmask) | _number(new)
    condition = f"{field} & 0x{int(old.netmask):x} == 0x{_number(old):x}"
    return f"{condition} {field} set {field} & 0x{host_and_new:x} | 0x{_number(new):x}"


def _difference(old: Network, new: Network) -> int:
    """Return what has to be added, in one's complement arithmetic, if `new` replaces `old` (RFC 1624)."""
    return (_sum(old) - _sum(new)) % 0xFFFF


def _sum(network: Network) -> int:
    return sum(divmod(_number(network), 1 << 16))


def _number(network: Network) -> int:
    return int(network.network_address)
