"""Judges the ways to other Nodes and clusters: tunnels, their MTU, routes, reverse path filters. Pure.

What BFD says (RFC 5880, 6.8.6; ovs-vswitchd.conf.db(5), bfd_status) tells who hears whom: a session that is
"init" hears its peer, which does not hear us; one that is "down" hears nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcagent.core.doctor.finding import Finding, fine, found, skipped
from mcagent.core.doctor.observed import NodeSeen, PathSeen, TunnelSeen
from mcagent.model.net import Address

PATH_DOWN = frozenset({"Path Down", "Concatenated Path Down", "Reverse Concatenated Path Down"})
REMOTE = "remote"  # PeerKind of gateways of other clusters
SENT_ENOUGH = 10  # packets after which a peer that sent nothing back is silent


def tunnels(seen: NodeSeen) -> Iterator[Finding]:
    """Judge every tunnel."""
    switch = seen.switch
    if switch.error or switch.vswitchd_error or not switch.datapath:
        yield skipped("tunnels", "Open vSwitch is not running, or lacks our bridge")
        return
    probes = {path.address: path for path in seen.paths}
    good = 0
    for name, peer in seen.agent.missing_tunnels:
        yield found("TunnelMissing", f"{name} is missing", subject=peer)
    for tunnel in switch.tunnels:
        finding = _tunnel(tunnel, seen, probes)
        good += finding is None
        if finding is not None:
            yield finding
    if good == len(switch.tunnels) and not seen.agent.missing_tunnels:
        silent = [t.peer for t in switch.tunnels if _runs_antrea(t, seen)]
        of_antrea = f"; without BFD, since they run Antrea: {', '.join(sorted(set(silent)))}" if silent else ""
        answer = f"{good - len(silent)} peers answer{of_antrea}"
        yield fine("tunnels", answer if good else "there are none")


def _name(tunnel: TunnelSeen, address: Address) -> str:
    kind = "Node" if tunnel.peer_kind == "node" else "gateway of" if tunnel.peer_kind == REMOTE else "gateway"
    return f"{kind} {tunnel.peer} ({address})"


def _tunnel(tunnel: TunnelSeen, seen: NodeSeen, probes: Mapping[Address, PathSeen]) -> Finding | None:
    address = seen.outer.get(tunnel.remote, tunnel.remote)
    who = _name(tunnel, address)
    places: dict[str, object] = {"port": seen.tunnel_port, "address": address}
    if tunnel.error:
        return found("TunnelError", f"{tunnel.name}: {tunnel.error}", subject=who)
    if not tunnel.bfd:
        return None
    if tunnel.forwarding:
        return None
    if tunnel.state == "up" or tunnel.remote_diagnostic in PATH_DOWN:
        return found("PathDown", f"{tunnel.name}: it says {tunnel.remote_diagnostic or 'no more'}", subject=who)
    if address != tunnel.remote:  # inside WireGuard, whose own check says why there is no handshake
        shaken = next((one for one in seen.agent.wireguard if one.gateway == str(address)), None)
        if shaken is None or shaken.state != "established":
            return None
        places["port"] = shaken.port
    antrea = _runs_antrea(tunnel, seen)
    if tunnel.peer_kind == REMOTE and not tunnel.seen and not tunnel.received:  # perhaps it speaks no BFD
        # Antrea's gateways send to the first gateway only: the agent knows whether this is it.
        silent = _reported_silent(seen) if antrea else _silent(tunnel)
        return found("PeerNeverHeard", _counted(tunnel), subject=who, places=places) if silent else None
    if antrea:
        return None
    if tunnel.state == "init":
        text = f"{tunnel.name}: its BFD arrives, it does not hear ours"
        return found("OneWay", text, subject=who, places=places)
    probe = probes.get(address)
    words = f"{tunnel.name}: BFD is {tunnel.state or 'off'} ({tunnel.diagnostic or 'No Diagnostic'})"
    if probe is not None and probe.small:
        text = f"{words}, while it answers {' and '.join(probe.ways)} probes"
        return found("PortBlocked", text, subject=who, places=places)
    return found("PeerDown", f"{words}, and it answers no probe", subject=who, places=places)


def _runs_antrea(tunnel: TunnelSeen, seen: NodeSeen) -> bool:
    return tunnel.peer_kind == REMOTE and tunnel.peer in seen.agent.antrea


def _reported_silent(seen: NodeSeen) -> bool:
    return any(problem.reason == "PeerSilent" for problem in seen.agent.problems)


def _silent(tunnel: TunnelSeen) -> bool:
    return tunnel.sent >= SENT_ENOUGH


def _counted(tunnel: TunnelSeen) -> str:
    return f"{tunnel.name}: {tunnel.sent} packets sent, none received"


def mtu(seen: NodeSeen) -> Iterator[Finding]:
    """Judge what the tunnels assume of the underlay, against what passes."""
    kernel = seen.kernel
    if kernel.error:
        yield skipped("path-mtu", kernel.error)
        return
    if not kernel.host_mtu:
        text = f"there is no device {seen.host_port}"
        yield skipped("path-mtu", text) if seen.switch.tunnels else fine("path-mtu", f"{text}, and no tunnel")
        return
    bad = False
    if kernel.wanted_mtu and kernel.host_mtu > kernel.wanted_mtu:
        bad = True
        allows = f"{kernel.uplink} ({kernel.uplink_mtu}) allows {kernel.wanted_mtu}"
        text = f"{seen.host_port} has {kernel.host_mtu}; {allows}"
        yield found("MtuDiffers", text)
    unknown = []
    for path in seen.paths:
        if not path.small:
            unknown.append(str(path.address))
        elif not path.full:
            bad = True
            fits = kernel.host_mtu - (path.size - max(path.passes, path.told))
            told = f"; a router said {path.told}" if path.told else "; no router said so"
            text = f"packets of {path.size} bytes are lost on the way to {path.address}, {path.passes} pass{told}"
            yield found("MtuTooLarge", text, subject=str(path.address), places={"mtu": fits, "needed": path.size})
    measured = len(seen.paths) - len(unknown)
    if not bad and measured:
        size = max(path.size for path in seen.paths if path.small)
        yield fine("path-mtu", f"{seen.host_port} has {kernel.host_mtu}; {size} bytes pass to {measured} peers")
    elif not bad and not seen.paths:
        yield fine("path-mtu", f"{seen.host_port} has {kernel.host_mtu}; there is no peer")
    elif not bad:
        yield skipped("path-mtu", f"no peer answers probes: {', '.join(unknown[:5])}")


def routes(seen: NodeSeen) -> Iterator[Finding]:
    """Judge where the kernel's lookup leads for networks of other clusters."""
    kernel = seen.kernel
    if kernel.error:
        yield skipped("routes", kernel.error)
        return
    if kernel.routes and not kernel.our_rules:
        yield found("RulesMissing", "our rule is missing", places={"table": seen.route_table})
        return
    bad = [one for one in kernel.routes if one.device != seen.host_port]
    for one in bad:
        where = one.device or "nowhere"
        text = f"{one.address} leads to {where} (table {one.table}), not to {seen.host_port}"
        yield found("RouteShadowed", text, subject=str(one.destination), places={"address": one.address})
    if not bad:
        yield fine("routes", f"{len(kernel.routes)} networks of other clusters by {seen.host_port}")


def reverse_path(seen: NodeSeen) -> Iterator[Finding]:
    """Judge reverse path filters on the underlay."""
    kernel = seen.kernel
    if kernel.error:
        yield skipped("rp-filter", kernel.error)
        return
    bad = False
    for address, device in kernel.backs if kernel.uplink_strict else ():
        if device not in {kernel.uplink, ""}:
            bad = True
            text = f"{kernel.uplink} has rp_filter=1, and the way to {address} leads by {device}"
            yield found("RpFilterStrict", text, subject=str(address), places={"device": kernel.uplink})
    if kernel.reverse_path_drops:
        bad = True
        yield found("RpFilterDrops", f"{kernel.reverse_path_drops} packets while the doctor looked")
    if not bad:
        yield fine("rp-filter", "drops nothing")
