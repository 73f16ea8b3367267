"""Check `conntrack`: the connection tracking table of the bridge has room for new connections."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.connection_table import table_use
from mcagent.dataplane.openflow.unixctl import call
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.facts import DatapathType

CHECK = DoctorCheck(
    name="conntrack",
    order=115,
    summary="the connection tracking table has room for new connections",
    causes={
        "ConntrackFull": failed("new connections that pass this Node are dropped; open ones go on", "{larger}"),
        "ConntrackNearlyFull": warning(
            "when the table is full, new connections that pass this Node are dropped", "{larger}"
        ),
        "ConntrackWasFull": warning(
            "new connections were dropped; the cause may be many short connections, or a scan", "{larger}"
        ),
    },
)
_LARGER = {
    DatapathType.SYSTEM: "sysctl -w net.netfilter.nf_conntrack_max={limit} (and in /etc/sysctl.d)",
    DatapathType.NETDEV: "ovs-appctl dpctl/ct-set-maxconns {limit} (after each start of ovs-vswitchd)",
}
_FULL, _NEARLY = 0.98, 0.8  # used part of the table


def use(node: ExaminedNode) -> TableUse | None:
    """Return the use of the table; None where nothing is tracked. Raises BackendError."""
    datapath = node.read(switch).datapath
    directory = Path(node.settings.ovsdb.removeprefix("unix:")).parent
    return None if datapath is None else table_use(partial(call, directory), datapath)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the use of the table."""
    open_vswitch = node.read(switch)
    if open_vswitch.away or open_vswitch.datapath is None:
        yield CHECK.skipped("Open vSwitch is not running, or lacks our bridge")
        return
    reading = node.read(use)
    if reading is None:
        yield CHECK.passed("the kernel tracks no connections yet")
        return
    text = f"{reading.entries} of {reading.limit} entries"
    larger = _LARGER[open_vswitch.datapath].format(limit=2 * reading.limit)
    if reading.share >= _FULL:
        yield CHECK.finding("ConntrackFull", text, larger=larger)
    elif reading.refused:
        refused = f"{text}; {reading.refused} found no place in the last hour"
        yield CHECK.finding("ConntrackWasFull", refused, larger=larger)
    elif reading.share >= _NEARLY:
        yield CHECK.finding("ConntrackNearlyFull", text, larger=larger)
    else:
        yield CHECK.passed(text)
