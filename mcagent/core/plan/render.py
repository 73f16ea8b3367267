"""Rendering of plans and desired states as text for people, and as plain values for JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import TypeAlias

from mcagent.model.net import socket_text
from mcagent.model.node_state import NodeState, Role
from mcagent.model.plan import Desired, Op, Plan, Step
from mcagent.model.problem import Problem
from mcagent.model.resources import (
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
from mcagent.model.wireguard import WireGuardDevice, WireGuardPeer

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

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
            bfd = (
                f" bfd {resource.bfd.min_tx}/{resource.bfd.min_rx} ms x{resource.bfd.mult}" if resource.bfd else ""
            )
            if resource.bfd and resource.bfd.cpath_down:
                bfd += ", path down"
            return (
                f"tunnel {resource.name} ofport {resource.ofport} {resource.type} to {resource.remote_ip}{port} "
                f"({resource.peer_kind} {resource.peer}){bfd}"
            )
        case FlowEntry():
            match = f",{resource.match}" if resource.match else ""
            return f"flow table={resource.table},priority={resource.priority}{match} actions={resource.actions}"
        case MeterEntry():
            return f"meter {resource.meter_id} {resource.rate} packets/s, burst {resource.burst}"
        case GroupEntry():
            return f"group {resource.group_id:#010x} {resource.body}"
        case Link():
            return f"link {resource.name} {'up' if resource.up else 'down'} mtu {resource.mtu}"
        case LinkAddress():
            return f"address {resource.address}/{resource.prefixlen} dev {resource.device}"
        case Neighbour():
            return f"neighbour {resource.address} lladdr {resource.mac} dev {resource.device}"
        case Route():
            kind = "" if resource.type == "unicast" else f"{resource.type} "
            via = f" via {resource.via}" if resource.via is not None else ""
            device = f" dev {resource.device}" if resource.device else ""
            source = f" src {resource.source}" if resource.source is not None else ""
            return f"route {kind}{resource.destination}{via}{device}{source} table {resource.table}"
        case Rule():
            mark = f" fwmark {resource.fwmark:#x}/{resource.fwmask:#x}" if resource.fwmask else ""
            return f"rule {resource.priority}:{mark} lookup {resource.table}"
        case NftSet():
            pairs = (socket_text(address, port) for address, port in resource.sockets or ())
            return f"nft set {resource.name} {{ {', '.join([*map(str, resource.elements), *pairs])} }}"
        case NftChain():
            base = f" ({resource.hook} {resource.priority})" if resource.hook else ""
            return f"nft chain {resource.name}{base}: {'; '.join(resource.rules)}"
        case WireGuardDevice():
            return (
                f"wireguard device {resource.name} ({resource.implementation}) port {resource.listen_port} "
                f"mtu {resource.mtu} public key {resource.public_key} "
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
                lines.append(f"      was: {resource_text(step.old)}")
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


def plan_json(plan: Plan) -> dict[str, Json]:
    """Convert a plan to plain values."""
    return {
        "counts": {str(op): sum(step.op is op for step in plan.steps) for op in Op},
        "stages": [
            {
                "backend": str(stage.backend),
                "title": stage.kind.title,
                "steps": [_step_json(step) for step in stage.steps],
            }
            for stage in plan.stages
        ],
    }


def desired_json(desired: Desired) -> dict[str, Json]:
    """Convert a desired state to plain values."""
    return {
        "fragments": {
            name: [resource_json(r) for r in fragment.resources] for name, fragment in desired.fragments.items()
        },
        "problems": [problem_json(problem) for problem in desired.problems],
        "summary": {**state_json(desired.state), "encryption": plain(desired.state.encryption)},
    }


def state_json(state: NodeState) -> dict[str, Json]:
    """Convert the state of the Node to plain values, without encryption."""
    return {
        "role": str(state.role),
        "why": state.why,
        "gateways": plain(state.gateways),
        "tunnels": state.tunnels,
        "clusters": plain(state.clusters),
        "clusterIDs": plain(state.cluster_ids),
        "services": len(state.services) if state.role is Role.GATEWAY else 0,
        "publishedPodCIDRs": plain(state.published_pods),
        "unreachable": plain(state.unreachable),
    }


def resource_json(resource: Resource) -> dict[str, Json]:
    """Convert a resource to plain values; key "resource" has its class name."""
    values: dict[str, Json] = {"resource": type(resource).__name__, "backend": str(resource.backend)}
    values.update({f.name: plain(getattr(resource, f.name)) for f in fields(resource)})
    return values


def problem_json(problem: Problem) -> dict[str, Json]:
    """Convert a problem to plain values."""
    return {f.name: plain(getattr(problem, f.name)) for f in fields(problem)}


def plain(value: object) -> Json:
    """Convert any value of the model to JSON types; addresses and networks become text."""
    if isinstance(value, StrEnum):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return str(value)


def _step_json(step: Step) -> dict[str, Json]:
    return {
        "op": str(step.op),
        "owner": step.owner,
        "old": None if step.old is None else resource_json(step.old),
        "new": None if step.new is None else resource_json(step.new),
    }


def _counts(steps: tuple[Step, ...]) -> str:
    counts = Counter(step.op for step in steps)
    words = {Op.ADD: "to add", Op.REPLACE: "to change", Op.DELETE: "to remove"}
    return ", ".join(f"{counts[op]} {words[op]}" for op in Op if counts[op])
