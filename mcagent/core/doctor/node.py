"""Judges what was seen of a Node: one function for each check, values in, findings out. Pure.

A consequence is not named beside its cause: where Open vSwitch does not run nothing is said of tunnels, and a path
whose port is closed says nothing of its MTU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcagent.core.doctor import netfilter, paths
from mcagent.core.doctor.catalogue import NODE_CHECKS
from mcagent.core.doctor.finding import Finding, Level, complete, fine, found, of_problem, skipped
from mcagent.core.doctor.observed import NodeSeen
from mcagent.model.node_state import Role
from mcagent.model.problem import Severity

CLOCK_WARNING, CLOCK_FAILED = 5.0, 300.0  # seconds; Kerberos and many tokens tolerate five minutes
OLDEST = (3, 1)  # Open vSwitch


def examine(seen: NodeSeen) -> list[Finding]:
    """Return all findings of a Node: for each check at least one line."""
    findings = [
        *_agent(seen),
        *_openvswitch(seen),
        *_datapath(seen),
        *_api(seen),
        *_permissions(seen),
        *paths.tunnels(seen),
        *paths.mtu(seen),
        *_wireguard(seen),
        *paths.routes(seen),
        *paths.reverse_path(seen),
        *netfilter.forwarding(seen),
        *netfilter.firewall(seen),
        *netfilter.masquerade(seen),
        *netfilter.marks(seen),
        *_problems(seen),
    ]
    told = {one.check for one in findings}
    findings += [fine(check, _NOTHING[check]) for check in ("cidrs", "services", "input") if check not in told]
    return complete(findings, NODE_CHECKS)


_NOTHING = {
    "cidrs": "no network is refused",
    "services": "all exported Services are served as written",
    "input": "all objects are used as written",
}


def _agent(seen: NodeSeen) -> Iterator[Finding]:
    agent = seen.agent
    if agent.error:
        yield found("AgentSilent", agent.error)
        return
    if not agent.alive:
        yield found("AgentThreadDead", "a thread of the agent does not run (/healthz names it)")
    if agent.draining:
        yield found("Draining", agent.draining)
    # What has a check of its own is not told twice.
    elsewhere = {"connected"} if seen.api.used else set()
    elsewhere |= {"listed", "dataplane"} if seen.api.error else set()
    elsewhere |= {"backend ovsdb", "backend openflow", "dataplane"} if _no_switch(seen) else set()
    missing = [(name, text) for name, text in agent.checks if name not in elsewhere]
    if missing:
        yield found("AgentNotReady", "; ".join(f"{name}: {text}" for name, text in missing))
    elif agent.alive and not agent.draining:
        yield fine("agent", f"version {agent.version}, {agent.role or 'no role'}")


def _no_switch(seen: NodeSeen) -> bool:
    return bool(seen.switch.error or seen.switch.vswitchd_error)


def _openvswitch(seen: NodeSeen) -> Iterator[Finding]:
    switch = seen.switch
    if switch.error:
        yield found("OvsdbAway", switch.error)
        return
    if switch.vswitchd_error:
        yield found("VswitchdAway", switch.vswitchd_error)
        return
    if not switch.datapath:
        yield found("BridgeMissing", "the database lacks our bridge")
    elif not switch.flows and not _bare(seen):
        yield found("NoFlows", "the bridge has no flow")
    numbers = tuple(int(one) for one in re.findall(r"\d+", switch.version)[:2])
    if numbers and numbers < OLDEST:
        yield found("VersionOld", f"version {switch.version}")
    elif switch.datapath and (switch.flows or _bare(seen)):
        yield fine("openvswitch", f"version {switch.version}, {switch.flows} flows, {len(switch.tunnels)} tunnels")


def _bare(seen: NodeSeen) -> bool:
    """Tell whether the Node has nothing to do, and its bridge no flow and no tunnel for that reason."""
    return seen.agent.role == Role.NONE and not seen.switch.tunnels


def _datapath(seen: NodeSeen) -> Iterator[Finding]:
    datapath, kernel = seen.switch.datapath, seen.kernel.kernel_datapath
    outside = [one for one in seen.agent.problems if one.reason == "UplinkOutside"]
    if not datapath:
        yield skipped("datapath", "there is no bridge")
    elif datapath == "system" and not kernel and not seen.kernel.error:
        yield found("NoKernelDatapath", "the kernel has no Open vSwitch datapath")
    elif datapath == "netdev" and kernel and not seen.userspace_chosen:
        yield found("UserspaceDatapath", "the bridge is on the userspace datapath (netdev)")
    elif not outside:
        chosen = "as configured" if seen.userspace_chosen else "this kernel has none"
        yield fine("datapath", "the kernel's" if datapath == "system" else f"userspace: {chosen}")
    for one in outside:
        yield of_problem(one)


def _api(seen: NodeSeen) -> Iterator[Finding]:
    api = seen.api
    if not api.used:
        yield fine("api", "not used: objects come from a directory")
        return
    lost = seen.agent.lost_kinds
    if api.error and seen.switch.vswitchd_error and seen.switch.datapath == "netdev":
        yield skipped(
            "api", f"{api.error}; the uplink of a userspace datapath is on Open vSwitch, which does not run"
        )
    elif api.error:
        yield found("ApiAway", api.error, places={"server": api.server or "https://API-SERVER"})
    elif lost:
        yield found("ApiAway", f"the agent's watches: {'; '.join(lost[:3])}", places={"server": api.server})
    else:
        yield fine("api", f"{api.server} answers")
    yield from clock("ClockOff", api.clock, "the API server")


def clock(reason: str, ahead: float | None, whose: str) -> Iterator[Finding]:
    """Yield whether a clock is off. `ahead`: seconds by which theirs is ahead of ours; None: it was not told."""
    if ahead is not None and abs(ahead) > CLOCK_WARNING:
        way = "behind" if ahead > 0 else "ahead of"
        seen = f"the clock here is {abs(ahead):.0f} s {way} that of {whose}"
        yield found(reason, seen, level=Level.FAILED if abs(ahead) > CLOCK_FAILED else None)


def _permissions(seen: NodeSeen) -> Iterator[Finding]:
    api = seen.api
    if not api.used:
        return
    if api.error or api.review_error:
        yield skipped("permissions", api.error or api.review_error)
        return
    for verb, resource in api.forbidden:
        yield found("NotAllowed403", f"may not {verb} {resource}", places={"verb": verb, "resource": resource})
    if not api.forbidden:
        yield fine("permissions", f"all {api.asked} that the agent needs")


def _wireguard(seen: NodeSeen) -> Iterator[Finding]:
    if not seen.encrypts:
        return
    if seen.agent.error:
        yield skipped("wireguard", "only the agent knows the peers, and it does not answer")
        return
    good = 0
    for peer in seen.agent.wireguard:
        gateway = f"{peer.cluster} {peer.gateway}".strip()
        if peer.state in ("established", "unneeded"):
            good += 1
        elif peer.state == "clear":
            yield found("ReachedInClear", peer.text, subject=gateway)
        else:
            likely = f"; likely: {peer.causes[0]}" if peer.causes else ""
            yield found("NoHandshake", f"{peer.text}{likely}", subject=gateway)
    if good == len(seen.agent.wireguard):
        yield fine("wireguard", f"sessions with {good} gateways" if good else "no gateway to encrypt to")


def _problems(seen: NodeSeen) -> Iterator[Finding]:
    """Yield the problems of the input, but those that other checks tell."""
    looked = any(one.level in {Level.WARNING, Level.FAILED} for one in paths.tunnels(seen))
    narrow = any(path.small and not path.full for path in seen.paths)  # MtuTooLarge, with what passes
    for problem in seen.agent.problems:
        if problem.reason == "UplinkOutside" or (problem.reason == "PeerSilent" and looked):
            continue
        if problem.reason == "PathMtu" and narrow:
            continue
        if problem.reason == "NotEncrypted" and problem.severity is Severity.WARNING:
            continue  # ReachedInClear
        yield of_problem(problem)
