"""Check `pre-sysctls`: the kernel forwards, and tracks enough connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.underlay import SYSCTL, read_file

LEAST = 65536
CHECK = DoctorCheck(
    name="pre-sysctls",
    order=330,
    summary="before the installation: the kernel forwards, and its connection tracking table is large enough",
    causes={
        "NotForwarding": failed(
            "without it the kernel passes nothing on between Pods and other clusters; most CNIs set it",
            "sysctl -w net.ipv4.ip_forward=1 (and in /etc/sysctl.d)",
        ),
        "ConntrackSmall": warning(
            f"Open vSwitch and the kernel share this table; with fewer than {LEAST} entries it is soon full",
            f"sysctl -w net.netfilter.nf_conntrack_max={4 * LEAST} (and in /etc/sysctl.d)",
        ),
    },
)
_CONNTRACK = Path("/proc/sys/net/netfilter/nf_conntrack_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctls:
    """Settings of the kernel. `connections`: the limit of tracked ones; None: nothing is tracked yet."""

    forwards: bool = True
    connections: int | None = None


def sysctls(node: ExaminedNode) -> Sysctls:
    """Read the settings of this Node. Raises BackendError."""
    node.progress("sysctls")
    limit = int(read_file(_CONNTRACK)) if _CONNTRACK.exists() else None
    return Sysctls(forwards=read_file(SYSCTL / "ip_forward") != "0", connections=limit)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Judge the settings."""
    reading = node.read(sysctls)
    few = reading.connections is not None and reading.connections < LEAST
    if not reading.forwards:
        yield CHECK.finding("NotForwarding", "net.ipv4.ip_forward is 0")
    if few:
        yield CHECK.finding("ConntrackSmall", f"net.netfilter.nf_conntrack_max is {reading.connections}")
    if reading.forwards and not few:
        yield CHECK.passed("the kernel forwards")
