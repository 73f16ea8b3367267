"""Check `wireguard`: gateways of other clusters have a WireGuard session. Only the agent knows them."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.problems import problems_of
from mcagent.doctor.examined import ExaminedNode

CHECK = DoctorCheck(
    name="wireguard",
    order=80,
    summary="gateways of other clusters have a WireGuard session",
    causes={
        "NoHandshake": failed(
            "packets to this gateway are dropped, because they cannot be encrypted",
            "mcagent wireguard show, here and on that gateway",
        ),
        "ReachedInClear": warning(
            "traffic to this gateway is not encrypted (encryptionFallback: allowClear)",
            "trafficEncryptionMode: wireGuard in that cluster as well",
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
    for peer in peers:
        gateway = f"{peer.cluster} {peer.gateway}".strip()
        if peer.state == "clear":
            yield CHECK.finding("ReachedInClear", peer.text, subject=gateway)
        elif peer.state not in ("established", "unneeded"):
            likely = f"; likely: {peer.causes[0]}" if peer.causes else ""
            yield CHECK.finding("NoHandshake", f"{peer.text}{likely}", subject=gateway)
    if all(peer.state in ("established", "unneeded") for peer in peers):
        yield CHECK.passed(f"sessions with {len(peers)} gateways" if peers else "no gateway to encrypt to")
