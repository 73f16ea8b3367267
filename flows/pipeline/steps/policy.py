"""Tables of policies: rules for connections between this Node's Pods and remote clusters.

Rules apply to requests only, and to each of their packets, so a change applies to open connections at once, and no
verdict is stored. A rule is a conjunctive match of Pods, peers and ports, with a flow for each of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from flows import fields as f
from flows.actions import DROP, Actions, Conjunction, Ct, Move, Output, set_whole
from flows.declare import PipelineTable
from flows.fields import Term, ct_state, exact
from flows.flow import Flow, Match
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.steps.mapping import source_prefix
from flows.pipeline.values import (
    Env,
    PodPolicies,
    PolicyDirection,
    PolicyPeers,
    PolicyPort,
    PolicyRule,
    PolicyStage,
    PolicyVerdict,
)

Terms = tuple[Term, ...]

TABLE = {
    (PolicyDirection.INGRESS, PolicyStage.TIERS): t.INGRESS_TIERS,
    (PolicyDirection.INGRESS, PolicyStage.NETWORK_POLICY): t.INGRESS_NETWORK_POLICY,
    (PolicyDirection.INGRESS, PolicyStage.BASELINE): t.INGRESS_BASELINE,
    (PolicyDirection.EGRESS, PolicyStage.TIERS): t.EGRESS_TIERS,
    (PolicyDirection.EGRESS, PolicyStage.NETWORK_POLICY): t.EGRESS_NETWORK_POLICY,
    (PolicyDirection.EGRESS, PolicyStage.BASELINE): t.EGRESS_BASELINE,
}
ALLOWED = {PolicyDirection.INGRESS: t.ADMIT, PolicyDirection.EGRESS: t.DEPARTURE}
LEVELS = 59000  # the number of levels of a table

_NEXT = {
    direction: {
        TABLE[direction, PolicyStage.TIERS]: TABLE[direction, PolicyStage.NETWORK_POLICY],
        TABLE[direction, PolicyStage.NETWORK_POLICY]: TABLE[direction, PolicyStage.BASELINE],
        TABLE[direction, PolicyStage.BASELINE]: ALLOWED[direction],
    }
    for direction in PolicyDirection
}
_RELATED = ct_state("+rel+trk")
# A first fragment that shows no port or ICMP type (0 stands for none).
_UNREADABLE = tuple(
    (exact(f.IP_PROTO, protocol), exact(field, 0))
    for protocol, field in ((f.IP_ICMP, f.ICMP_TYPE), *f.PORTS_DST.items())
)
# The answer of nft to protocols other than TCP: administratively prohibited (RFC 1812, section 5.2.7.1).
_ANSWER = (exact(f.IP_PROTO, f.IP_ICMP), exact(f.ICMP_TYPE, 3), exact(f.ICMP_CODE, 13))
_REJECTED = {
    PolicyDirection.INGRESS: (set_whole(f.ETH_SRC, r.MAC_REJECT_IN), e.goto(t.MAP)),
    PolicyDirection.EGRESS: (
        set_whole(f.ETH_SRC, r.MAC_REJECT_OUT),
        set_whole(f.ETH_DST, r.HOST_MAC),
        Output(f.PORT_IN_PORT),
    ),
}


def base(env: Env) -> Iterator[Flow]:
    """Pass packets that rules do not apply to, and requests that no rule matches; reject requests."""
    if not env.identities:
        return
    for prefix in env.prefixes:
        to_pod = (source_prefix(prefix.real), *_REJECTED[PolicyDirection.EGRESS])
        yield e.flow(t.EGRESS_REJECT, d.PREFIX + prefix.real.prefixlen, f.source_in(prefix.virtual), *to_pod)
    for family in r.FAMILIES:
        for direction, tables in _NEXT.items():
            first, go_on = TABLE[direction, PolicyStage.TIERS], e.goto(ALLOWED[direction])
            # A translated packet that conntrack considers a reply is a request: see `arrive`.
            raw = (r.TRANSLATED.is_(0),) if direction is PolicyDirection.INGRESS else ()
            yield e.flow(first, d.UNJUDGED, (family, e.REPLY, *raw), go_on)
            # The kernel's conntrack passes on whole datagrams, that of the userspace datapath their fragments.
            # Rules apply to the first one; without it the others are useless.
            yield e.flow(first, d.UNJUDGED, (family, e.LATER), go_on)
            yield from _undecidable(first, family)
            for table, following in tables.items():
                yield e.flow(table, d.ELSE, (family,), e.goto(following))
        # The kernel answers with an address of the Node, which remote clusters do not accept as a source.
        pod = Move(r.CT_DESTINATION, r.SOURCE_ADDRESS)
        terms = (f.IPV4_ONLY, ct_state("+rel+rpl-inv+trk"), *_ANSWER)
        if family is f.IPV4_ONLY:
            yield e.flow(t.EGRESS_TIERS, d.UNJUDGED + 1, terms, pod, e.goto(t.DEPARTURE))
        yield e.flow(t.EGRESS_REJECT, d.NORMAL, (family,), *_REJECTED[PolicyDirection.EGRESS])
        yield e.flow(t.REJECT, d.ELSE, (family,), e.goto(t.REJECT_STATE))
        yield from e.limited(env, t.REJECT, (family, e.NEW, r.MARK_PORT.is_(0)), t.REJECT_STATE)
        yield e.drop(t.REJECT_STATE, d.SPECIAL, (family, e.INVALID), d.DROP_INVALID, t.REJECT_STATE.number)
        for bit, marks in e.REMEMBER.items():
            commit = Ct(env.zone(r.ZONE_ARRIVAL), commit=True, exec_=marks)
            answer = _REJECTED[PolicyDirection.INGRESS]
            yield e.flow(t.REJECT_STATE, d.NORMAL, (family, r.TRANSLATED.is_(bit)), commit, *answer)
            if bit:
                reversed_request = (family, e.REVERSED, r.TRANSLATED.is_(1))
                yield e.flow(t.REJECT_STATE, d.EXACT, reversed_request, replace(commit, force=True), *answer)


def _undecidable(table: PipelineTable, family: Term) -> Iterator[Flow]:
    """Drop fragments of requests that rules cannot be applied to.

    A fragment that conntrack has not reassembled may show too little of its header, and the userspace datapath
    processes it, once its time is over, with the metadata of another packet and without +trk
    (ipf_send_expired_frags in OVS' lib/ipf.c). First fragments show their ports in the mode that the agent sets
    (OFPC_FRAG_NX_MATCH), and not in that of a new bridge.
    """
    yield e.drop(table, d.UNJUDGED + 1, (family, e.FRAGMENT, ct_state("+inv")), d.DROP_INVALID, table.number)
    for terms in _UNREADABLE:
        request = (family, e.FIRST, ct_state("-rpl+trk"), *terms)
        yield e.drop(table, d.UNJUDGED, request, d.DROP_INVALID, table.number)


def pods(p: PodPolicies) -> Iterator[Flow]:
    """Drop requests to and from isolated Pods, and of unknown identity to some Pods, if no rule matches."""
    ways = ((PolicyDirection.INGRESS, p.isolated_ingress), (PolicyDirection.EGRESS, p.isolated_egress))
    for number, (direction, isolated) in enumerate(ways):
        for terms in _of_pods(direction, isolated):
            table = TABLE[direction, PolicyStage.NETWORK_POLICY]
            yield e.drop(table, d.NORMAL, terms, d.DROP_ISOLATED, number)
    for terms in _of_pods(PolicyDirection.INGRESS, p.unknown_dropped):
        unknown = (*terms, exact(f.TUN_ID, r.IDENTITY_UNKNOWN))
        yield e.drop(t.INGRESS_BASELINE, d.NORMAL, unknown, d.DROP_UNKNOWN)


def level(rules: Iterable[PolicyRule]) -> Iterator[Flow]:
    """Yield the flows of all rules of one direction, stage and level, which have the same verdict.

    A match that several rules share is one flow, with a clause of each rule. If a rule with Pods only has the same
    match, its flow replaces the shared one.
    """
    clauses: defaultdict[tuple[int, Match], list[Conjunction]] = defaultdict(list)
    places: dict[tuple[int, Match], tuple[PipelineTable, Terms]] = {}
    plain: dict[tuple[int, Match], Flow] = {}
    for rule in sorted(rules, key=lambda rule: rule.id):
        table, priority = TABLE[rule.direction, rule.stage], d.RULES - min(rule.level, LEVELS)
        cookie = d.COOKIES.cookie(d.DROP_POLICY if rule.verdict is PolicyVerdict.DROP else d.FOR_POLICY, rule.id)
        actions = _actions(rule.direction, rule.verdict, table)
        parts = [list(part) for part in _clauses(rule)]
        if not all(parts):
            continue
        if len(parts) == 1:
            flows = (d.PIPELINE.flow(table, priority, terms, actions, cookie=cookie) for terms in parts[0])
            plain.update({(flow.table, flow.match): flow for flow in flows})
            continue
        for number, part in enumerate(parts, 1):
            for terms in part:
                key = (priority, Match.of(*terms))
                places[key] = (table, terms)
                clauses[key].append(Conjunction(rule.id, number, len(parts)))
        terms = (exact(f.CONJ_ID, rule.id),)
        yield d.PIPELINE.flow(table, priority, terms, actions, cookie=cookie)
    yield from plain.values()
    for (priority, match), shared in clauses.items():
        table, terms = places[priority, match]
        if (table.number, match) not in plain:
            cookie = d.COOKIES.cookie(d.FOR_POLICY)
            yield d.PIPELINE.flow(table, priority, terms, tuple(dict.fromkeys(shared)), cookie=cookie)


def _actions(direction: PolicyDirection, verdict: PolicyVerdict, table: PipelineTable) -> Actions:
    if verdict is PolicyVerdict.DROP:
        return DROP
    if verdict is PolicyVerdict.REJECT:
        return (e.goto(t.REJECT if direction is PolicyDirection.INGRESS else t.EGRESS_REJECT),)
    return (e.goto(ALLOWED[direction] if verdict is PolicyVerdict.ALLOW else _NEXT[direction][table]),)


# --- matches of a rule ------------------------------------------------------------------------------------


def _clauses(rule: PolicyRule) -> Iterator[Iterator[Terms]]:
    """Yield the clauses of a rule (Pods, peers, ports), each as alternative matches, without those always met."""
    yield _of_pods(rule.direction, rule.pods)
    if not rule.peers.any_peer:
        yield _of_peers(rule.direction, rule.peers)
    if rule.ports:
        yield chain(chain.from_iterable(map(_of_port, rule.ports)), _of_errors(rule.verdict))


def _of_errors(verdict: PolicyVerdict) -> Iterator[Terms]:
    """Yield the match of ICMP errors, which have no ports: where a peer may send requests, it may send errors."""
    if verdict in (PolicyVerdict.ALLOW, PolicyVerdict.PASS):
        yield from ((family, _RELATED) for family in r.FAMILIES)


def _of_pods(direction: PolicyDirection, addresses: Iterable[f.Address]) -> Iterator[Terms]:
    in_address = f.destination_in if direction is PolicyDirection.INGRESS else f.source_in
    yield from (
        in_address(address) for address in dict.fromkeys(addresses) if f.eth_type_of(address) in r.FAMILIES
    )


def _of_peers(direction: PolicyDirection, peers: PolicyPeers) -> Iterator[Terms]:
    in_address = f.source_in if direction is PolicyDirection.INGRESS else f.destination_in
    for number, identity in dict.fromkeys(peers.identities):
        has_identity = (exact(f.TUN_ID, identity),)
        yield (*has_identity, r.CLUSTER.is_(number)) if number else has_identity
    yield from ((r.CLUSTER.is_(number),) for number in dict.fromkeys(peers.clusters))
    for network in dict.fromkeys(peers.networks):
        if f.eth_type_of(network) in r.FAMILIES:
            yield in_address(network)
    for address, protocol, port in dict.fromkeys(peers.services):
        if (family := f.eth_type_of(address)) in r.FAMILIES:
            yield (*in_address(address), *_protocol(family, protocol), exact(f.PORTS_DST[protocol], port))


def _of_port(port: PolicyPort) -> Iterator[Terms]:
    for family in r.FAMILIES:
        terms = (family, *_protocol(family, port.protocol))
        if port.protocol in (f.IP_ICMP, f.IP_ICMPV6):
            if (port.protocol == f.IP_ICMP) is (family is f.IPV4_ONLY):
                yield (*terms, *_of_icmp(port))
        elif port.protocol in f.PORTS_DST and (port.low, port.high) != (0, 0xFFFF):
            for value, mask in ranges(port.low, port.high):
                yield (*terms, Term(f.PORTS_DST[port.protocol], value, mask))
        else:
            yield terms


def _of_icmp(port: PolicyPort) -> Iterator[Term]:
    six = port.protocol == f.IP_ICMPV6
    fields = (f.ICMPV6_TYPE, f.ICMPV6_CODE) if six else (f.ICMP_TYPE, f.ICMP_CODE)
    for field, value in zip(fields, (port.icmp_type, port.icmp_code), strict=True):
        if value is not None:
            yield exact(field, value)


def _protocol(family: Term, protocol: int) -> Terms:
    return (family, exact(f.IP_PROTO, protocol))


def ranges(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield (value, mask) pairs that match exactly the 16-bit numbers from `low` to `high`."""
    while low <= high:
        size = low & -low or 1 << 16
        while low + size - 1 > high:
            size >>= 1
        yield low, 0xFFFF & ~(size - 1)
        low += size
