"""Check `datapath`: the kernel's module, or the uplink of a userspace datapath."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.model.config import DatapathChoice
from mcagent.model.dataplane.facts import DatapathType

CHECK = DoctorCheck(
    name="datapath",
    order=30,
    summary="the kernel's module, or the uplink of a userspace datapath",
    causes={
        "NoKernelDatapath": failed(
            "the bridge is for the kernel's datapath, which this kernel does not have",
            "modprobe openvswitch; where there is no such module: datapath: netdev in the configuration",
        ),
        "UserspaceDatapath": warning(
            "the kernel has Open vSwitch's datapath now, which is many times faster",
            "restart the agent, which changes the datapath of the bridge with a short loss",
        ),
    },
)


def kernel_has_datapath(_: ExaminedNode) -> bool:
    """Tell whether the kernel has Open vSwitch's datapath."""
    return kernel_datapath_exists()


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the bridge's datapath. An uplink outside of the bridge is a problem of the input."""
    datapath, chosen = node.read(switch).datapath, node.config.datapath is DatapathChoice.NETDEV
    if datapath is None:
        yield CHECK.skipped("there is no bridge")
    elif datapath is DatapathType.SYSTEM and not node.read(kernel_has_datapath):
        yield CHECK.finding("NoKernelDatapath", "the kernel has no Open vSwitch datapath")
    elif datapath is DatapathType.NETDEV and node.read(kernel_has_datapath) and not chosen:
        yield CHECK.finding("UserspaceDatapath", "the bridge is on the userspace datapath (netdev)")
    elif not any(problem.reason == "UplinkOutside" for problem in node.status.problems):
        userspace = f"userspace: {'as configured' if chosen else 'this kernel has none'}"
        yield CHECK.passed("the kernel's" if datapath is DatapathType.SYSTEM else userspace)
