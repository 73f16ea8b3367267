"""Check `openvswitch`: both daemons, the version, our bridge with its flows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.model.node_state import NodeRole

OLDEST = (3, 1)
CHECK = DoctorCheck(
    name="openvswitch",
    order=20,
    summary="ovsdb-server and ovs-vswitchd answer, the version, our bridge with its flows",
    causes={
        "OvsdbAway": failed(
            "without Open vSwitch's database nothing can be programmed; the kernel's datapath forwards known "
            "connections",
            "systemctl status ovsdb-server, or kubectl -n kube-system get pods -l "
            "app.kubernetes.io/component=openvswitch; the key `ovsdb` says where the socket is",
        ),
        "VswitchdAway": failed(
            "no new connection is forwarded, and peers hear no BFD: they use other gateways",
            "systemctl status ovs-vswitchd; its log is /var/log/openvswitch/ovs-vswitchd.log",
        ),
        "DatapathHeld": failed(
            "ovs-vswitchd leaves the datapath as it was and exchanges no packets with it: new connections are not "
            "forwarded, and BFD is silent in both directions",
            "if Open vSwitch did not just start: ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait",
        ),
        "BridgeMissing": failed(
            "without the bridge no packet is forwarded to other clusters",
            "mcagent status: the agent creates the bridge when it runs and reaches the database",
        ),
        "NoFlows": failed(
            "the bridge drops everything until its flows are there",
            "mcagent status; mcagent plan shows what the agent would program",
        ),
        "VersionOld": warning(
            f"mcagent is tested with Open vSwitch {OLDEST[0]}.{OLDEST[1]} and later",
            "upgrade Open vSwitch, or deploy it with mcagent: mcagent deploy --help, `openvswitch`",
        ),
    },
)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate daemons, version and bridge."""
    reading = node.read(switch)
    if reading.error:
        yield CHECK.finding("OvsdbAway", reading.error)
        return
    if reading.vswitchd_error:
        yield CHECK.finding("VswitchdAway", reading.vswitchd_error)
        return
    if reading.is_waiting:
        yield CHECK.finding("DatapathHeld", "other_config:flow-restore-wait is true")
        return
    # The Node has nothing to do, so it has no flow and no tunnel.
    bare = node.status.summary.role == NodeRole.NONE and not reading.tunnels
    if reading.datapath is None:
        yield CHECK.finding("BridgeMissing", "the database lacks our bridge")
    elif not reading.flows and not bare:
        yield CHECK.finding("NoFlows", "the bridge has no flow")
    numbers = tuple(int(text) for text in re.findall(r"\d+", reading.version)[:2])
    if numbers and numbers < OLDEST:
        yield CHECK.finding("VersionOld", f"version {reading.version}")
    elif reading.datapath is not None and (reading.flows or bare):
        yield CHECK.passed(f"version {reading.version}, {reading.flows} flows, {len(reading.tunnels)} tunnels")
