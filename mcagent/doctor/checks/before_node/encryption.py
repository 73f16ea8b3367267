"""Check `pre-encryption`: this Node can encrypt, if the configuration says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.wireguard.kernel import KernelDriver
from mcagent.dataplane.wireguard.userspace import WireGuardGo
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.checks.before_node.openvswitch import has_datapath
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.model.dataplane.facts import DatapathType

_LOST = "with this configuration the Node sends nothing to other clusters, and its agent does not become ready"
CHECK = DoctorCheck(
    name="pre-encryption",
    order=315,
    summary="before encryption is configured: the kernel's datapath and WireGuard exist",
    causes={
        "DatapathCannotEncrypt": failed(
            _LOST,
            "modprobe openvswitch, then restart Open vSwitch and the agent; on kernels for clouds it "
            "is in a package of its own (linux-modules-extra)",
        ),
        "WireGuardMissing": failed(_LOST, "modprobe wireguard, or install wireguard-go (docs/encryption.md)"),
    },
)


def has_wireguard(node: ExaminedNode) -> bool:
    """Tell whether the kernel has WireGuard, or wireguard-go can run. Raises BackendError."""
    node.progress("WireGuard")
    name, directory = node.config.wireguard_device, Path(node.settings.run_dir)
    return KernelDriver(name).available() or WireGuardGo(name, directory).available()


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Judge whether the configured encryption is possible."""
    if not (node.config.encrypts or node.config.encrypts_nodes):
        yield CHECK.passed("not configured; try --config with the planned configuration")
        return
    datapath = node.read(switch).datapath
    if datapath is DatapathType.NETDEV or (datapath is None and not node.read(has_datapath)):
        text = "Open vSwitch forwards in a process (userspace datapath), past the kernel and its WireGuard"
        yield CHECK.finding("DatapathCannotEncrypt", text)
    elif not node.read(has_wireguard):
        yield CHECK.finding("WireGuardMissing", "the kernel has no WireGuard, and there is no wireguard-go")
    else:
        yield CHECK.passed("the kernel's datapath, and WireGuard")
