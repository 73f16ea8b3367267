"""Check `pre-kernel`: the version of Linux, and nf_tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.nft.observe import nft_errors, run_nft
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import ExaminedNode

OLDEST = (5, 10)
CHECK = DoctorCheck(
    name="pre-kernel",
    order=300,
    summary="before the installation: Linux is new enough, and has nf_tables",
    causes={
        "KernelOld": failed(
            f"mcagent needs Linux {OLDEST[0]}.{OLDEST[1]} or newer: older kernels ignore the MTU of a route when "
            "they forward",
            "upgrade the kernel, or exclude the Node (the chart's agent.nodeSelector)",
        ),
        "NfTablesMissing": failed(
            "the agent closes the Node to other clusters, and marks connections, with nf_tables",
            "run the command as root; if that is no help: modprobe nf_tables, and install nftables",
        ),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The release of the running kernel, and why nf_tables cannot be used ("": it can)."""

    release: str
    nft_error: str = ""


def kernel(node: ExaminedNode) -> Kernel:
    """Read the release, and list the tables of nf_tables. Raises no error."""
    node.progress("the kernel")
    try:
        code, _, stderr = run_nft(["list", "tables"])
        error = nft_errors(stderr) if code else ""
    except OSError as failure:
        error = str(failure)
    return Kernel(release=os.uname().release, nft_error=error)


def numbers(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release, such as (6, 1) of "6.1.0-37-amd64"."""
    return tuple(int(text) for text in re.findall(r"\d+", release)[:2])


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Judge the kernel."""
    reading = node.read(kernel)
    if numbers(reading.release) < OLDEST:
        yield CHECK.finding("KernelOld", f"Linux {reading.release}")
    if reading.nft_error:
        yield CHECK.finding("NfTablesMissing", reading.nft_error)
    if numbers(reading.release) >= OLDEST and not reading.nft_error:
        yield CHECK.passed(f"Linux {reading.release}, with nf_tables")
