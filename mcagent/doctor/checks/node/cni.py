"""Check `cni`: the CNI of this Node, and settings of it that connections to other clusters need (docs/cni.md)."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.facts import USERSPACE_PORT
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import legacy_chains
from mcagent.doctor.readings.cni import CniMode, CniName, RecognisedCni, cnis, devices, programs

_NAME_DEVICES = (
    "devices: '!{port}' with forceDeviceDetection: true in Cilium's Helm values, or the name of the uplink; "
    "then restart Cilium's agents"
)

CHECK = DoctorCheck(
    name="cni",
    order=125,
    summary="the CNI of this Node, and settings of it that connections to other clusters need",
    causes={
        "HostPortTaken": failed(
            "Cilium uses {port} as one of its network devices and translates the sources of Pods to its address: "
            "no Pod of this Node reaches another cluster",
            _NAME_DEVICES,
        ),
        "HostPortMayBeTaken": warning(
            "if Cilium uses {port} as one of its network devices, no Pod of this Node reaches another cluster; "
            "without CAP_BPF the doctor cannot see that",
            "kubectl -n kube-system exec ds/cilium -- cilium-dbg status | grep Masq; if it lists {port}: "
            + _NAME_DEVICES,
        ),
        "HostPortPrograms": warning(
            "these programs see the packets to and from other clusters first",
            "Cilium: " + _NAME_DEVICES + "; other programs: bpftool net shows them",
        ),
        "PodMtuTooLarge": warning(
            "with eBPF host routing, datagrams of Pods that are larger than {port} are lost without an ICMP error",
            "MTU: {mtu} in Cilium's Helm values (for Pods that start later), or bpf.hostLegacyRouting: true",
        ),
    },
)
UNTRIED = frozenset({CniMode.EBPF, CniMode.IPSEC, CniMode.DSR, CniMode.IPVS})
_TUNNEL_OVERHEAD = 50  # bytes by which Cilium's routes in Pods are smaller than their devices


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate programs on the host port, and Cilium's modes."""
    present = node.read(cnis)
    findings = [*_programs(node, present)]
    for cni in present:
        if cni.name is CniName.CILIUM and CniMode.NO_NETFILTER_MASQUERADE in cni.modes:
            findings += _host_routing(node, cni)
    yield from findings
    node.read(legacy_chains)
    if not findings:
        untried = any(UNTRIED.intersection(cni.modes) for cni in present)
        text = " and ".join(map(str, present)) or "none that is known"
        yield CHECK.passed(text + (": never tried with mcagent (docs/cni.md)" if untried else ""))


def _programs(node: ExaminedNode, present: tuple[RecognisedCni, ...]) -> Iterator[CheckFinding]:
    """Evaluate eBPF programs on the host port. Cilium ignores that of a kernel datapath: it is a bridge to it."""
    port, reading = node.config.host_port, node.read(programs)
    link = node.read(devices).get(port)
    translating = any(
        cni.name is CniName.CILIUM and CniMode.NETFILTER_MASQUERADE not in cni.modes for cni in present
    )
    if reading.attached:
        reason = "HostPortTaken" if translating else "HostPortPrograms"
        yield CHECK.finding(reason, f"{port} has {', '.join(reading.attached)}", port=port)
    elif translating and not reading.complete and link is not None and link.kind == USERSPACE_PORT:
        cilium = ", ".join(str(cni) for cni in present)
        yield CHECK.finding("HostPortMayBeTaken", f"{cilium}, and {port} is no bridge to it", port=port)


def _host_routing(node: ExaminedNode, cilium: RecognisedCni) -> Iterator[CheckFinding]:
    """Evaluate what eBPF host routing, which the Node does not show, would do: Cilium uses it if it can."""
    port, links = node.config.host_port, node.read(devices)
    host = links.get(port)
    overhead = _TUNNEL_OVERHEAD if {CniMode.VXLAN, CniMode.GENEVE}.intersection(cilium.modes) else 0
    mtus = [link.state.mtu - overhead for name, link in links.items() if name.startswith("lxc")]
    if host is not None and mtus and max(mtus) > host.state.mtu:
        text = (
            f"{cilium}, perhaps with eBPF host routing: Pods have an MTU of {max(mtus)}, {port} {host.state.mtu}"
        )
        yield CHECK.finding("PodMtuTooLarge", text, port=port, mtu=host.state.mtu + overhead)
