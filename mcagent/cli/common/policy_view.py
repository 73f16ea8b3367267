"""What policies make of a request between clusters, from the objects alone: which rules there are, which decides.

Asks no agent and sends no packet: a simulated switch with the flows of the policies processes the request. Must
not know how these flows evaluate rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain

from flows import pipeline
from flows.fields import CT_NEW, CT_STATE, CT_TRK
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline.steps import policy as policy_tables
from flows.simulator import Packet, SimulatedSwitch
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments.policies import pipeline_rules, pod_policies
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.rules import LocalRule
from mcagent.core.policies.selection import Isolating, SelectedRules, isolating_policies, select_rules
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import Snapshot
from mcagent.model.parsing import labels
from mcagent.model.policies import PROTOCOLS, Direction, Operator, Requirement, RulePort, Selector, Verdict

_ENV = pipeline.Env(gateway=True, ct_zone_base=0, local_gateways=(), identities=True)
_STAGES = list(pipeline.PolicyStage)


@dataclass(frozen=True, kw_only=True)
class InForce:
    """The policies of a Node. Of `clusters`, the other ones, only CIDRs are known.

    `imported`: the endpoints of imported Services that rules name, those in this cluster among them.
    """

    selected: SelectedRules
    imported: pipeline_input.Backends
    clusters: Mapping[str, AcceptedCluster]

    @cached_property
    def rules(self) -> tuple[LocalRule, ...]:
        """The rules in the order in which they are evaluated."""

        def order(rule: LocalRule) -> tuple[object, ...]:
            return _STAGES.index(pipeline_input.stage_of(rule)), rule.order, rule.key

        return tuple(sorted(chain.from_iterable(self.selected.rules.values()), key=order))

    @cached_property
    def isolating(self) -> Isolating:
        """The policies that isolate a Pod, by direction and address."""
        return isolating_policies(self.selected.isolated)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The number of each rule by its key."""
        return pipeline_input.rule_ids(self.selected.rules)

    @cached_property
    def cluster_ids(self) -> Mapping[str, int]:
        """The number of each cluster that rules are about; other clusters have 0."""
        pairs = chain.from_iterable(self.selected.identities.values())
        names = {cluster for cluster, _ in pairs} | pipeline_input.clusters_of_unknown(self.selected.unknown)
        return {name: number for number, name in enumerate(sorted(names - {UNCLAIMED}), 1)}

    @cached_property
    def switch(self) -> SimulatedSwitch:
        """A switch with the tables of policies."""
        return self._switch_of(self.selected)

    @cached_property
    def switch_without_networks(self) -> SimulatedSwitch:
        """The same for a peer of unknown address: rules are not about networks."""
        rules = {
            policy: tuple(replace(rule, networks=()) for rule in policy_rules)
            for policy, policy_rules in self.selected.rules.items()
        }
        return self._switch_of(replace(self.selected, rules=rules))

    def _switch_of(self, selected: SelectedRules) -> SimulatedSwitch:
        engine = IncrementalEngine()
        with engine.one_pass():
            levels = pipeline_rules(engine, selected, self.ids, self.cluster_ids, self.clusters)
        pods = pipeline.pod_policies(pod_policies(selected.isolated, selected.rules))
        entries = (pods, *map(pipeline.rules, levels.values()))
        return SimulatedSwitch.of(
            [*policy_tables.base(_ENV), *chain.from_iterable(entry.flows for entry in entries)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The first packet of a connection, as the Node of our Pod sees it. `peer`: None where no address is known.

    `identity`: of the sender, labels.UNKNOWN without one. `port`: None is none that a rule names.
    """

    direction: Direction
    pod: Address
    peer: Address | None = None
    cluster: str = ""
    identity: int = labels.UNKNOWN
    protocol: int = 6
    port: int | None = None
    icmp: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a request. `policy` and `rule` are "" where no rule decides; `why` says what does."""

    verdict: Verdict
    policy: str = ""
    rule: str = ""
    tier: str = ""
    why: str


def in_force(snapshot: Snapshot, config: Config) -> InForce:
    """Return what a Node enforces."""
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, snapshot, config)
    clusters = {
        info.cluster_id: AcceptedCluster(
            cluster_id=info.cluster_id,
            cidrs=(*([info.service_cidr] if info.service_cidr else []), *info.pod_cidrs),
            gateways=(),
            snat=False,
        )
        for info in snapshot.cluster_infos.values()
    }
    slices = {key: item for key, item in snapshot.endpoint_slices.items() if item.source_cluster}
    imported = pipeline_input.backends(slices, pipeline_input.services_of(selected.rules))
    return InForce(selected=selected, imported=imported, clusters=clusters)


def decide(node: InForce, request: Request) -> Decision:
    """Return what the flows of the policies do with a request over IPv4, and what decides."""
    direction = pipeline.PolicyDirection(request.direction)
    switch = node.switch_without_networks if request.peer is None else node.switch
    walk = switch.walk(
        _packet(request),
        table=policy_tables.TABLE[direction, pipeline.PolicyStage.TIERS].number,
        fields={CT_STATE: CT_NEW | CT_TRK, r.CLUSTER.field: node.cluster_ids.get(request.cluster, 0)},
    )
    cookies = [d.COOKIES.split(step.flow.cookie) for step in walk.steps if step.flow is not None]
    category, number = next((cookie for cookie in reversed(cookies) if cookie is not None), (0, 0))
    if category == d.DROP_ISOLATED.number:
        isolating = ", ".join(node.isolating[request.direction, request.pod])
        return Decision(verdict=Verdict.DROP, why=f"isolated by {isolating}, which allow no such connection")
    if category == d.DROP_UNKNOWN.number:
        why = "rules select the Pod's senders by label, and this sender's label identity is not known"
        return Decision(verdict=Verdict.DROP, why=why)
    rule = next((rule for rule in node.rules if node.ids[rule.key] == number), None)
    if rule is None or rule.verdict is Verdict.PASS:
        return Decision(verdict=Verdict.ALLOW, why="no rule matches, and no NetworkPolicy isolates the Pod")
    origin = {"policy": rule.policy, "rule": rule.name, "tier": rule.tier}
    return Decision(verdict=rule.verdict, why=f"{rule.policy} {rule.name} says {rule.verdict}", **origin)


def _packet(request: Request) -> Packet:
    """Return the packet of a request; a port that no rule names is port 0."""
    ends = (request.pod, request.peer or IPv4Address(0))
    source, destination = ends if request.direction is Direction.EGRESS else reversed(ends)
    icmp_type, icmp_code = request.icmp or (0, 0)
    return Packet(
        in_port=0,
        src=source,
        dst=destination,
        proto=request.protocol,
        dst_port=request.port or 0,
        icmp_type=icmp_type,
        icmp_code=icmp_code,
        tun_id=request.identity,
    )


def decide_within(node: InForce, request: Request) -> Decision | None:
    """Return what becomes of a Pod's request to an endpoint in its cluster; None: no rule names the Service.

    Only rules about imported Services are enforced within the cluster (`mcagent.core.fragments.own_endpoints`).
    """
    end, unenforced = (request.peer, request.protocol, request.port), None
    for rule in node.rules:
        if rule.direction is not Direction.EGRESS or request.pod not in rule.pods:
            continue
        if any(end in node.imported.get(service, ()) for service in rule.services):
            allows = rule.verdict in (Verdict.ALLOW, Verdict.PASS)
            return Decision(
                verdict=Verdict.ALLOW if allows else Verdict.DROP,
                why=f"{rule.policy} {rule.name} says {rule.verdict}; for this endpoint of the same cluster the "
                "Node's netfilter enforces it, unless the CNI forwards past it (PartlyEnforced in mcagent status)",
                policy=rule.policy,
                rule=rule.name,
                tier=rule.tier,
            )
        if any(end in node.selected.services.get(service, ()) for service in rule.services):
            why = f"{rule.policy} {rule.name} is about a Service of the same cluster, where only the CNI decides"
            unenforced = unenforced or Decision(verdict=Verdict.ALLOW, why=why)
    return unenforced


# --- for people -------------------------------------------------------------------------------------------


def selector_text(selector: Selector) -> str:
    """Return the Pods that a selector selects, as kubectl's -l has it."""
    parts = [("Pods", selector.pod), ("Namespaces", selector.namespace)]
    return " of ".join(f"{kind} {','.join(map(_required, of)) or '(all)'}" for kind, of in parts)


def _required(one: Requirement) -> str:
    values = f"({','.join(sorted(one.values))})"
    match one.operator:
        case Operator.EXISTS:
            return one.key
        case Operator.DOES_NOT_EXIST:
            return f"!{one.key}"
        case Operator.IN if len(one.values) == 1:
            return f"{one.key}={values[1:-1]}"
    return f"{one.key} {'in' if one.operator is Operator.IN else 'notin'} {values}"


def port_text(port: RulePort) -> str:
    """Return ports as `80/TCP`, `80-90/TCP`, `UDP`, `ICMP type 8`."""
    if port.protocol not in PROTOCOLS.values():
        icmp = (("type", port.icmp_type), ("code", port.icmp_code))
        return " ".join(["ICMP", *(f"{field} {number}" for field, number in icmp if number is not None)])
    name = next(protocol for protocol, number in PROTOCOLS.items() if number == port.protocol)
    if (port.low, port.high) == (0, 65535):
        return name
    return f"{port.low}/{name}" if port.low == port.high else f"{port.low}-{port.high}/{name}"
