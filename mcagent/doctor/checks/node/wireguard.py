"""Check `wireguard`: the encrypted peers have a WireGuard session. Only the agent knows them."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.api.status import EncryptedPeer
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.problems import problems_of
from mcagent.doctor.examined import ExaminedNode

CHECK = DoctorCheck(
    name="wireguard",
    order=80,
    summary="gateways of other clusters, and Nodes that are encrypted to, have a WireGuard session",
    causes={
        "NoHandshake": failed(
            "packets to this peer are dropped, because they cannot be encrypted",
            "mcagent wireguard show, here and on that Node",
        ),
        "FewerDevices": warning(
            "the remaining WireGuard devices encrypt for all connections, which limits their throughput",
            "open the UDP ports of the further devices between the gateways, or wireGuard.devices: 1",
        ),
        "ReachedInClear": warning(
            "traffic to this gateway is not encrypted (encryptionFallback: allowClear)",
            "trafficEncryptionMode: wireGuard in that cluster as well",
        ),
        "NodeReachedInClear": warning(
            "the tunnel to this Node is not encrypted (nodeTrafficEncryption: preferred)",
            "nodeTrafficEncryption on that Node as well; required, when all Nodes have it",
        ),
    },
)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate sessions, and problems of the input that prevent encryption."""
    # A gateway that is reached in the clear is reported below.
    clear = ("NotEncrypted", "warning")
    problems = [problem for problem in node.status.problems if (problem.reason, problem.severity) != clear]
    yield from problems_of(CHECK, problems)
    if not node.config.encrypts:
        return
    if node.agent_error:
        yield CHECK.skipped("only the agent knows the peers, and it does not answer")
        return
    peers = node.status.encryption.peers if node.status.encryption is not None else ()
    if any(peer.state == "unknown" for peer in peers):
        yield CHECK.skipped("the agent could not read WireGuard's devices: its log says why")
        return
    for peer in peers:
        gateway = f"{f'Node {peer.node}' if peer.node else peer.cluster} {peer.gateway}".strip()
        likely = f"; likely: {peer.causes[0]}" if peer.causes else ""
        if peer.state == "clear":
            cause = "NodeReachedInClear" if peer.node else "ReachedInClear"
            yield CHECK.finding(cause, peer.text, subject=gateway)
        elif peer.state not in ("established", "unneeded"):
            yield CHECK.finding("NoHandshake", f"{peer.text}{likely}", subject=gateway)
        elif peer.lacks_sessions:
            yield CHECK.finding("FewerDevices", f"{peer.text}{likely}", subject=gateway)
    if all(_is_complete(peer) for peer in peers):
        yield CHECK.passed(f"sessions with {len(peers)} peers" if peers else "no peer to encrypt to")


def _is_complete(peer: EncryptedPeer) -> bool:
    return peer.state == "unneeded" or (peer.state == "established" and not peer.lacks_sessions)
