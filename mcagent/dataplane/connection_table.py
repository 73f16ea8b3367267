"""The connection tracking table that the bridge uses: entries, limit, open TCP connections of a zone; deletion.

Of the kernel's datapath this is the table of the Node's network namespace (nf_conntrack), which the CNI and
kube-proxy use, too; of the userspace datapath it is a table of ovs-vswitchd. Reads on request; every read of a
zone walks the whole table. To delete a connection does not: it is looked up by its tuple.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from mcagent.model.dataplane.conntrack import OriginalTuple, TableUse
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.errors import BackendError

SYSCTL = Path("/proc/sys/net/netfilter")
Control = Callable[..., str]  # runs a command of ovs-appctl(8) and returns its output, or raises BackendError
# Names of ct_dpif_tcp_state (lib/ct-dpif.c of Open vSwitch) of connections that still carry data.
_OPEN_STATES = frozenset({"SYN_SENT", "SYN_RECV", "ESTABLISHED", "CLOSE_WAIT", "FIN_WAIT_1"})
_STATE = re.compile(r"\[(\w+)\]\s*=\s*(\d+)")
_FULL = re.compile(r"^conntrack_full\s.{0,200}?([\d.]{1,20})/sec\s{1,20}total:", re.M)


def table_use(control: Control, datapath: DatapathType) -> TableUse | None:
    """Return the use of the table; None where the kernel tracks no connections. Raises BackendError."""
    if datapath is DatapathType.SYSTEM:
        entries, limit = _number(SYSCTL / "nf_conntrack_count"), _number(SYSCTL / "nf_conntrack_max")
        return TableUse(entries=entries, limit=limit) if limit else None
    name = _name(datapath)
    entries, limit = (int(control(f"dpctl/ct-get-{item}", name)) for item in ("nconns", "maxconns"))
    match = _FULL.search(control("coverage/show"))  # no line: the table was never full
    return TableUse(entries=entries, limit=limit, refused=round(float(match[1]) * 3600) if match else 0)


def open_connections(control: Control, datapath: DatapathType, zone: int) -> int:
    """Return the number of open TCP connections of a zone. Raises BackendError."""
    shown = control("dpctl/ct-stats-show", "-m", _name(datapath), f"zone={zone}")
    return sum(int(count) for state, count in _STATE.findall(shown) if state in _OPEN_STATES)


def delete_connection(control: Control, datapath: DatapathType, zone: int, connection: OriginalTuple) -> None:
    """Delete one connection. Raises BackendError, also if there is no such connection (any more)."""
    c = connection
    ports = f"ct_tp_src={c.source_port},ct_tp_dst={c.destination_port}"
    text = f"ct_nw_src={c.source},ct_nw_dst={c.destination},ct_nw_proto={c.protocol},{ports}"
    # With all five fields, and without the tuple of replies, Open vSwitch dumps no table (lib/ct-dpif.c).
    arguments = (f"zone={zone}", text)
    try:  # Open vSwitch 3.1 takes the datapath's name, if there is a zone and a tuple, for a tuple
        control("dpctl/flush-conntrack", *arguments)
    except BackendError:  # there are several datapaths
        control("dpctl/flush-conntrack", _name(datapath), *arguments)


def _name(datapath: DatapathType) -> str:
    return f"{datapath}@ovs-{datapath}"


def _number(path: Path) -> int:
    """Return the number in a file; 0 if there is no file: the kernel tracks nothing. Raises BackendError."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise BackendError("conntrack", "read", str(path), str(error)) from None
