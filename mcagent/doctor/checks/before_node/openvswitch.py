"""Check `pre-openvswitch`: Open vSwitch answers, or the kernel has its datapath."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch

CHECK = DoctorCheck(
    name="pre-openvswitch",
    order=310,
    summary="before the installation: Open vSwitch answers, or can be started with the kernel's datapath",
    causes={
        "NoDatapathModule": warning(
            "without the kernel module openvswitch a process forwards the packets, at a fraction of the rate",
            "modprobe openvswitch; on kernels for clouds and containers it is in a package of its own "
            "(linux-modules-extra)",
        ),
    },
)
_ROOTS = (Path("/"), Path("/host"))  # of this machine, and where `kubectl debug node` mounts it


def has_datapath(node: ExaminedNode) -> bool:
    """Tell whether the kernel module is loaded, built in, or can be loaded."""
    node.progress("the kernel module openvswitch")
    if Path("/sys/module/openvswitch").exists():
        return True
    release = os.uname().release
    lists = (
        root / "lib/modules" / release / name for root in _ROOTS for name in ("modules.dep", "modules.builtin")
    )
    return any("/openvswitch.ko" in file.read_text(errors="replace") for file in lists if file.is_file())


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Judge whether packets will be forwarded by the kernel."""
    running = not node.read(switch).error
    text = "Open vSwitch answers" if running else "no Open vSwitch answers: the chart starts one"
    if node.read(has_datapath):
        yield CHECK.passed(f"{text}; the kernel has its datapath")
    else:
        yield CHECK.finding("NoDatapathModule", f"{text}; the kernel lacks the module openvswitch")
