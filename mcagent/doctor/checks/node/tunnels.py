"""Check `tunnels`: every tunnel exists, and its peer answers BFD; where one does not, whose packets are lost.

BFD (RFC 5880, 6.8.6; ovs-vswitchd.conf.db(5), bfd_status) tells the direction that is lost: a session that
is "init" hears its peer, which does not hear us; one that is "down" hears nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.problems import problems_of
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import TunnelState, switch
from mcagent.doctor.readings.underlay import gateway_addresses, paths
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.net import Address

CHECK = DoctorCheck(
    name="tunnels",
    order=60,
    summary="every tunnel exists and its peer answers BFD; where one does not: which direction is lost, a probe",
    causes={
        "TunnelMissing": failed(
            "the API asks for this tunnel, and the bridge does not have it", "mcagent status; mcagent plan"
        ),
        "TunnelError": failed(
            "Open vSwitch refuses the tunnel: no packet is sent to this peer",
            "read Open vSwitch's message; lsmod | grep -e geneve -e vxlan; another tunnel with the same key "
            "may exist",
        ),
        "PortBlocked": failed(
            "the peer is there, but tunnel packets between the two are lost: UDP port {port} is closed between "
            "them, by a firewall, a security group or a network policy of hosts",
            "open UDP {port} from and to {address}; to see where they end: tcpdump -ni any udp port {port} and "
            "host {address}, on both sides",
        ),
        "OneWay": failed(
            "the peer's packets arrive, and ours do not reach the peer (BFD stays in state init): UDP port {port} "
            "is closed in one direction",
            "open UDP {port} towards {address}; to see it: tcpdump -ni any udp port {port} and host {address}, on "
            "the peer",
        ),
        "PeerDown": failed(
            "the peer answers neither BFD nor probes: the Node or the network to it is down, or probes are "
            "filtered",
            "ping {address}; kubectl get nodes in its cluster; if it is up: open UDP {port} between the two",
        ),
        "PeerNeverHeard": warning(
            "packets are sent and none was ever received; the peer is used without BFD, as Antrea's gateways are",
            "if that cluster runs mcagent: open UDP {port} between here and {address}",
        ),
        "PathDown": warning(
            "the peer requests no packets: it drains, has no flows yet, or reaches no other cluster",
            "mcagent gateways --history; mcagent status on the peer",
        ),
    },
)
_PATH_DOWN = frozenset({"Path Down", "Concatenated Path Down", "Reverse Concatenated Path Down"})
_SENT_ENOUGH = 10  # packets after which a peer that sent nothing back is silent


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate every tunnel. Problems that the agent reports are left out if a tunnel has a finding."""
    open_vswitch = node.read(switch)
    if open_vswitch.away or open_vswitch.datapath is None:
        yield CHECK.skipped("Open vSwitch is not running, or lacks our bridge")
        yield from problems_of(CHECK, node.status.problems)
        return
    if open_vswitch.is_waiting:
        yield CHECK.skipped("ovs-vswitchd exchanges no packets with the datapath: see check openvswitch")
        return
    missing = [tunnel for tunnel in node.status.tunnels if not tunnel.exists]
    for tunnel in missing:
        subject = f"{tunnel.peer_kind} {tunnel.peer}"
        yield CHECK.finding("TunnelMissing", f"{tunnel.name} is missing", subject=subject)
    findings = [finding for tunnel in open_vswitch.tunnels if (finding := _judge(node, tunnel)) is not None]
    yield from findings
    if not findings and not missing:
        antrea = {
            tunnel.port.name: tunnel.port.peer for tunnel in open_vswitch.tunnels if _runs_antrea(node, tunnel)
        }
        without_bfd = f"; without BFD, since they run Antrea: {', '.join(sorted(set(antrea.values())))}"
        answer = f"{len(open_vswitch.tunnels) - len(antrea)} peers answer{without_bfd if antrea else ''}"
        yield CHECK.passed(answer if open_vswitch.tunnels else "there are none")
        yield from problems_of(CHECK, node.status.problems)


def _judge(node: ExaminedNode, tunnel: TunnelState) -> CheckFinding | None:
    port, status = tunnel.port, tunnel.bfd_status
    address = gateway_addresses(node.status).get(port.remote_ip, port.remote_ip)
    subject = _subject(tunnel, address)
    remote_diagnostic = status.get("remote_diagnostic", "")
    if tunnel.error:
        return CHECK.finding("TunnelError", f"{port.name}: {tunnel.error}", subject=subject)
    if port.bfd is None or status.get("forwarding") == "true":
        return None
    if status.get("state") == "up" or remote_diagnostic in _PATH_DOWN:
        return CHECK.finding("PathDown", f"{port.name}: it says {remote_diagnostic or 'no more'}", subject=subject)
    udp_port = node.tunnel_port
    if address != port.remote_ip:  # inside WireGuard, whose own check says why there is no handshake
        encrypted = node.status.encryption.peers if node.status.encryption is not None else ()
        session = next((peer for peer in encrypted if peer.gateway == str(address)), None)
        if session is None or session.state != "established":
            return None
        udp_port = session.port
    never_heard = port.peer_kind is PeerKind.REMOTE and not port.bfd_seen and not tunnel.received
    if never_heard or _runs_antrea(node, tunnel):  # perhaps it speaks no BFD
        if not never_heard or not _silent(node, tunnel):
            return None
        reason, detail = "PeerNeverHeard", f"{tunnel.sent} packets sent, none received"
    elif status.get("state") == "init":
        reason, detail = "OneWay", "its BFD arrives, it does not hear ours"
    else:
        reason, detail = _unheard(node, tunnel, address)
    return CHECK.finding(reason, f"{port.name}: {detail}", subject=subject, port=udp_port, address=address)


def _unheard(node: ExaminedNode, tunnel: TunnelState, address: Address) -> tuple[str, str]:
    state, diagnostic = tunnel.bfd_status.get("state"), tunnel.bfd_status.get("diagnostic")
    bfd = f"BFD is {state or 'off'} ({diagnostic or 'No Diagnostic'})"
    probe = next((path for path in node.read(paths) if path.address == address), None)
    if probe is not None and probe.small:
        return "PortBlocked", f"{bfd}, while it answers {' and '.join(probe.protocols)} probes"
    return "PeerDown", f"{bfd}, and it answers no probe"


def _subject(tunnel: TunnelState, address: Address) -> str:
    kinds = {PeerKind.NODE: "Node", PeerKind.REMOTE: "gateway of"}
    return f"{kinds.get(tunnel.port.peer_kind, 'gateway')} {tunnel.port.peer} ({address})"


def _runs_antrea(node: ExaminedNode, tunnel: TunnelState) -> bool:
    clusters = node.status.summary.antrea_clusters
    return tunnel.port.peer_kind is PeerKind.REMOTE and tunnel.port.peer in clusters


def _silent(node: ExaminedNode, tunnel: TunnelState) -> bool:
    # Antrea's gateways send to the first gateway only: the agent knows whether this is it.
    if _runs_antrea(node, tunnel):
        return any(problem.reason == "PeerSilent" for problem in node.status.problems)
    return tunnel.sent >= _SENT_ENOUGH
