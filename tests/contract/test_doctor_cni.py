"""The doctor's check of the CNI against real devices, rules and eBPF programs in a namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devtools.nodes import netns
from mcagent.agent.config import Settings
from mcagent.api.doctor import CheckFinding
from mcagent.api.status import Status
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_link
from mcagent.dataplane.netlink.programs import BPF_SYSCALL
from mcagent.doctor.checks.node import cni
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.cni import cnis
from mcagent.model.config import Config

pytestmark = pytest.mark.contract

PROG_LOAD, LINK_CREATE = 5, 28  # linux/bpf.h
SCHED_CLS, TCX_EGRESS = 3, 47
MASQUERADE = (
    "-t nat -A CILIUM_POST_nat -s 10.2.2.0/24 ! -d 10.2.0.0/16 ! -o cilium_+ "
    "-m comment --comment cilium-masquerade -j MASQUERADE"
)
TC = ["tc", "filter", "add", "dev", "mc-gw0", "ingress", "bpf", "da", "bytecode", "1,6 0 0 4294967295,"]


@pytest.fixture
def cilium(fresh_namespace: str) -> str:
    """Give a Node with the devices and the chain of Cilium without masquerade by netfilter, and a host port."""
    netns.ip(fresh_namespace, "tuntap", "add", "mc-gw0", "mode", "tap")
    netns.ip(fresh_namespace, "link", "set", "mc-gw0", "mtu", "1450", "up")
    netns.add_veth("cilium_host", fresh_namespace, "cilium_net", fresh_namespace)
    netns.add_veth("lxc1", fresh_namespace, "eth0", fresh_namespace)
    netns.ip(fresh_namespace, "link", "set", "lxc1", "mtu", "1450")
    iptables(fresh_namespace, "-t nat -N CILIUM_POST_nat")
    iptables(fresh_namespace, "-t nat -A POSTROUTING -j CILIUM_POST_nat")
    return fresh_namespace


def iptables(namespace: str, rule: str) -> None:
    """Run iptables in a namespace."""
    netns.execute(namespace, ["iptables", "-w", *rule.split()])


def examined() -> ExaminedNode:
    """Return the Node of the calling thread's namespace, with nothing read."""
    return ExaminedNode(Settings(core=Config(node_name="n")), Status())


def findings(namespace: str) -> list[CheckFinding]:
    """Run the check in a namespace."""
    return netns.call(namespace, lambda: list(cni.examine(examined())))


def reasons(namespace: str) -> set[str]:
    """Return the reasons of all findings that are not fine."""
    return {finding.reason for finding in findings(namespace) if finding.wrong}


def recognised(namespace: str) -> str:
    """Return the CNIs of a namespace as words."""
    return " and ".join(netns.call(namespace, lambda: [str(cni) for cni in cnis(examined())]))


@contextmanager
def tcx(namespace: str, device: str) -> Iterator[None]:
    """Attach a program that passes each packet to the next one, as Cilium attaches its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def bpf(command: int, attributes: bytes) -> int:
        padded = attributes.ljust(128, b"\0")
        number = BPF_SYSCALL[platform.machine()]
        descriptor = int(libc.syscall(number, command, ctypes.create_string_buffer(padded, 128), 128))
        if command == LINK_CREATE and ctypes.get_errno() == errno.EINVAL:
            pytest.skip("this kernel has no tcx (Linux 6.6)")
        assert descriptor >= 0, os.strerror(ctypes.get_errno())
        return descriptor

    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, -1, 0x95, 0, 0, 0))  # return TCX_NEXT
    license_text = ctypes.create_string_buffer(b"Dual BSD/GPL")
    load = struct.pack("=IIQQ", SCHED_CLS, 2, ctypes.addressof(code), ctypes.addressof(license_text))

    def attach() -> list[int]:
        netlink = NetlinkSocket()
        link = read_link(netlink, device)
        netlink.close()
        assert link is not None
        program = bpf(PROG_LOAD, load)
        return [program, bpf(LINK_CREATE, struct.pack("=IIII", program, link.index, TCX_EGRESS, 0))]

    descriptors = netns.call(namespace, attach)
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # the kernel detaches the program with its link


def test_a_node_without_faults_has_none(cilium: str) -> None:
    """Cilium is recognised; without programs on the host port and large Pods nothing is wrong."""
    assert recognised(cilium) == "Cilium (no masquerade by netfilter, no kube-proxy)"
    assert reasons(cilium) == set()


def test_programs_on_the_host_port_are_seen(cilium: str) -> None:
    """Attached by tcx or by tc; a fault where Cilium masquerades in eBPF, else to look at."""
    with tcx(cilium, "mc-gw0"):
        assert reasons(cilium) == {"HostPortTaken"}
        (taken,) = (finding for finding in findings(cilium) if finding.wrong)
        assert "tcx egress: 1" in taken.seen
        iptables(cilium, MASQUERADE)
        assert recognised(cilium) == "Cilium (masquerade by netfilter, no kube-proxy)"
        assert reasons(cilium) == {"HostPortPrograms"}
    assert reasons(cilium) == set()
    netns.execute(cilium, ["tc", "qdisc", "add", "dev", "mc-gw0", "clsact"])
    assert reasons(cilium) == set()
    netns.execute(cilium, TC)
    assert reasons(cilium) == {"HostPortPrograms"}


def test_pods_larger_than_the_host_port_are_told(cilium: str) -> None:
    """Where Cilium may forward in eBPF; the tunnel's overhead is taken off Pods' packets already."""
    netns.ip(cilium, "link", "set", "lxc1", "mtu", "1500")
    assert reasons(cilium) == {"PodMtuTooLarge"}
    netns.add_veth("cilium_vxlan", cilium, "peer", cilium)
    assert reasons(cilium) == set()


def test_a_calico_and_a_kube_router_are_recognised(fresh_namespace: str) -> None:
    """By their chains and devices, as iptables and the kernel list them."""
    iptables(fresh_namespace, "-t filter -N cali-FORWARD")
    netns.add_veth("vxlan.calico", fresh_namespace, "peer", fresh_namespace)
    netns.ip(fresh_namespace, "link", "set", "vxlan.calico", "down")
    assert recognised(fresh_namespace) == "Calico"
    netns.ip(fresh_namespace, "link", "set", "vxlan.calico", "up")
    iptables(fresh_namespace, "-t filter -N KUBE-ROUTER-FORWARD")
    netns.ip(fresh_namespace, "rule", "add", "priority", "32764", "fwmark", "0x2abc", "table", "78")
    assert recognised(fresh_namespace) == "Calico (VXLAN) and kube-router (direct server return)"
