"""Plans and desired states as text, and as values of the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mcagent.api import plan as api
from mcagent.api import status
from mcagent.api.codec import converted, plain, to_json
from mcagent.api.status import ClusterStatus, LocalGatewayStatus, Summary
from mcagent.model.dataplane.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    Link,
    LinkAddress,
    MeterEntry,
    Neighbour,
    NftChain,
    NftSet,
    Resource,
    Route,
    Rule,
    TunnelPort,
)
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.net import socket_text
from mcagent.model.node_state import NodeRole, NodeState
from mcagent.model.plan import Desired, Op, Plan, Step
from mcagent.model.problem import Problem

_SIGNS: Mapping[Op, str] = {Op.ADD: "+", Op.REPLACE: "~", Op.DELETE: "-"}


def resource_text(resource: Resource) -> str:
    """Return one line of text in the syntax of the tool that shows such resources (ip, nft, ovs-ofctl, …)."""
    match resource:
        case Bridge():
            return f"bridge {resource.name} datapath {resource.datapath}"
        case HostPort():
            return f"port {resource.name} ofport {resource.ofport} mac {resource.mac}"
        case TunnelPort():
            port = f" port {resource.dst_port}" if resource.dst_port else ""
            local = f" from {resource.local_ip}" if resource.local_ip is not None else ""
            bfd = (
                f" bfd {resource.bfd.min_tx}/{resource.bfd.min_rx} ms x{resource.bfd.mult}" if resource.bfd else ""
            )
            if resource.bfd and resource.bfd.cpath_down:
                bfd += ", path down"
            mark = f" mark {resource.egress_mark:#x}" if resource.egress_mark else ""
            return (
                f"tunnel {resource.name} ofport {resource.ofport} {resource.type}{local} to {resource.remote_ip}"
                f"{port}{mark} ({resource.peer_kind} {resource.peer}){bfd}"
            )
        case FlowEntry():
            match = f",{resource.match}" if resource.match else ""
            return f"flow table={resource.table},priority={resource.priority}{match} actions={resource.actions}"
        case MeterEntry():
            return f"meter {resource.meter_id} {resource.rate} packets/s, burst {resource.burst}"
        case GroupEntry():
            return f"group {resource.group_id:#010x} {resource.body}"
        case Link():
            switches = f"forwarding {int(resource.forwarding)} rp_filter {resource.rp_filter}"
            return f"link {resource.name} {'up' if resource.up else 'down'} mtu {resource.mtu} {switches}"
        case LinkAddress():
            return f"address {resource.address}/{resource.prefixlen} dev {resource.device}"
        case Neighbour():
            return f"neighbour {resource.address} lladdr {resource.mac} dev {resource.device}"
        case Route():
            kind = "" if resource.type == "unicast" else f"{resource.type} "
            via = f" via {resource.via}" if resource.via is not None else ""
            device = f" dev {resource.device}" if resource.device else ""
            source = f" src {resource.source}" if resource.source is not None else ""
            mtu = f" mtu {resource.mtu}" if resource.mtu else ""
            return f"route {kind}{resource.destination}{via}{device}{source}{mtu} table {resource.table}"
        case Rule():
            mark = f" fwmark {resource.fwmark:#x}/{resource.fwmask:#x}" if resource.fwmask else ""
            destination = f" to {resource.destination}" if resource.destination is not None else ""
            protocol = f" ipproto {resource.protocol}" if resource.protocol else ""
            ports = "sport {}-{}".format(*resource.source_ports) if resource.source_ports is not None else ""
            selector = f"{destination}{mark}{protocol} {ports}".rstrip()
            return f"rule {resource.priority}:{selector} lookup {resource.table}"
        case NftSet():
            pairs = (socket_text(address, port) for address, port in resource.sockets or ())
            return f"nft set {resource.name} {{ {', '.join([*map(str, resource.elements), *pairs])} }}"
        case NftChain():
            base = f" ({resource.hook} {resource.priority})" if resource.hook else ""
            return f"nft chain {resource.name}{base}: {'; '.join(resource.rules)}"
        case WireGuardDevice():
            loose = " rp_filter 2" if resource.loose_source_check else ""
            return (
                f"wireguard device {resource.name} ({resource.implementation}) port {resource.listen_port} "
                f"mtu {resource.mtu}{loose} public key {resource.public_key} "
                f"addresses {', '.join(map(str, resource.addresses))}"
            )
        case WireGuardPeer():
            successor = f" next key {resource.successor}" if resource.successor else ""
            return (
                f"wireguard peer {resource.public_key} dev {resource.device} "
                f"endpoint {socket_text(*resource.endpoint)} "
                f"allowed ips {', '.join(map(str, resource.allowed_ips))} "
                f"keepalive {resource.keepalive} s{successor}"
            )


def former_text(resource: Resource) -> str:
    """Return the text of a resource that is replaced, with a change that its fields do not show."""
    hidden = "" if getattr(resource, "intact", True) else " (another program changed a detail that is not shown)"
    return resource_text(resource) + hidden


def plan_text(plan: Plan) -> str:
    """Render a plan as text, stage by stage: + added, ~ changed (with the old resource), - removed."""
    if not plan.stages:
        return "nothing to do: the dataplane is as it should be\n"
    lines: list[str] = []
    for number, stage in enumerate(plan.stages, 1):
        lines.append(f"{number}. {stage.kind.title} ({stage.backend}; {_counts(stage.steps)})")
        for step in stage.steps:
            lines.append(f"  {_SIGNS[step.op]} {resource_text(step.resource)}")
            if step.op is Op.REPLACE and step.old is not None:
                lines.append(f"      was: {former_text(step.old)}")
    lines.append(f"in all: {_counts(plan.steps)}")
    return "\n".join(lines) + "\n"


def desired_text(desired: Desired) -> str:
    """Render the desired state as text, fragment by fragment, then the problems."""
    lines: list[str] = []
    for name, fragment in desired.fragments.items():
        lines.append(f"{name} ({len(fragment.resources)})")
        lines.extend(f"  {resource_text(resource)}" for resource in fragment.resources)
    lines.extend(f"{problem.severity}: {problem} [{problem.reason}]" for problem in desired.problems)
    return "".join(f"{line}\n" for line in lines)


def api_plan(plan: Plan, problems: Iterable[Problem] = ()) -> api.PlanReport:
    """Return the plan for programs."""
    return api.PlanReport(
        counts={op: sum(step.op is op for step in plan.steps) for op in Op},
        stages=tuple(
            api.PlanStage(
                backend=stage.backend,
                title=stage.kind.title,
                steps=tuple(_step(step) for step in stage.steps),
            )
            for stage in plan.stages
        ),
        problems=converted(tuple[status.ProblemStatus, ...], tuple(problems)),
    )


def api_desired(desired: Desired) -> api.DesiredState:
    """Return the desired state for programs."""
    return api.DesiredState(
        fragments={
            name: tuple(_resource(resource) for resource in fragment.resources)
            for name, fragment in desired.fragments.items()
        },
        problems=converted(tuple[status.ProblemStatus, ...], desired.problems),
        summary={**to_json(node_summary(desired.state)), "encryption": plain(desired.state.encryption)},
    )


def node_summary(state: NodeState) -> Summary:
    """Return what the Node is, without encryption."""
    return Summary(
        role=state.role,
        why=state.why,
        gateways=converted(tuple[LocalGatewayStatus, ...], state.gateways),
        tunnels=state.tunnels,
        clusters=converted(dict[str, ClusterStatus], dict(state.clusters)),
        cluster_ids=dict(state.cluster_ids),
        services=len(state.services) if state.role is NodeRole.GATEWAY else 0,
        published_pod_cidrs=tuple(map(str, state.published_pods)),
        virtual_pod_cidrs={str(prefix.real): str(prefix.virtual) for prefix in state.prefixes},
        unreachable=state.unreachable,
    )


def _step(step: Step) -> api.PlanStep:
    old, new = (None if resource is None else _resource(resource) for resource in (step.old, step.new))
    return api.PlanStep(op=step.op, owner=step.owner, old=old, new=new)


def _resource(resource: Resource) -> dict[str, Any]:
    return {"resource": type(resource).__name__, "backend": str(resource.backend), **plain(resource)}


def _counts(steps: tuple[Step, ...]) -> str:
    counts = Counter(step.op for step in steps)
    words = {Op.ADD: "to add", Op.REPLACE: "to change", Op.DELETE: "to remove"}
    return ", ".join(f"{counts[op]} {words[op]}" for op in Op if counts[op])
