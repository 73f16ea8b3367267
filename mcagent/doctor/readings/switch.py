"""Open vSwitch on this Node: both daemons, our bridge, and its tunnels with BFD and counters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.dataplane.openflow.ofctl import Ofctl
from mcagent.dataplane.ovsdb.query import select
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Bridge, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.vswitch.tools import HOLD

_FLOWS = re.compile(r"\bflow_count=(\d+)")
_VERSION = re.compile(r"^Software: (\S+)", re.M)  # of ovs-vswitchd (OFPMP_DESC)
_CONFIG = "other_config"
_ROOT = {"op": "select", "table": "Open_vSwitch", "where": [], "columns": [_CONFIG]}
_TIMEOUT = 3  # seconds for an answer of ovs-vswitchd


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelState:
    """A tunnel in the database, with its column bfd_status (ovs-vswitchd.conf.db(5)) and its packets."""

    port: TunnelPort
    bfd_status: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    received: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Open vSwitch. `flows` is None if ovs-vswitchd does not answer; `datapath` is None without our bridge."""

    error: str = ""  # of the database
    vswitchd_error: str = ""
    is_waiting: bool = (
        False  # flow-restore-wait: vswitchd leaves the datapath as it is, and exchanges no packets with it
    )
    version: str = ""
    datapath: DatapathType | None = None
    flows: int | None = None
    tunnels: tuple[TunnelState, ...] = ()

    @property
    def away(self) -> bool:
        """Whether one of the daemons does not answer."""
        return bool(self.error or self.vswitchd_error)


def switch(node: ExaminedNode) -> Switch:
    """Read the database and query ovs-vswitchd. Raises no error: failures are in the result."""
    from mcagent.dataplane.ovsdb.backend import (
        OvsdbBackend,  # python-ovs, which the doctor of a cluster does not need
    )

    node.progress("Open vSwitch")
    remote, bridge = node.settings.ovsdb, node.config.bridge
    backend = OvsdbBackend(remote, bridge)
    try:
        resources = backend.observe().values()
        statistics, errors = backend.statistics(), backend.errors()
        tunnels = backend.liveness().tunnels
        (roots,) = select(remote, "read", _ROOT)
    except BackendError as error:
        return Switch(error=str(error))
    finally:
        backend.close()
    datapath = next((resource.datapath for resource in resources if isinstance(resource, Bridge)), None)
    if not roots:
        return Switch(
            error=f"{remote}: the database is empty: it has no row in table Open_vSwitch (ovs-vsctl init)"
        )
    is_waiting = [HOLD, "true"] in roots[0][_CONFIG][1]
    if datapath is None:
        return Switch(is_waiting=is_waiting)
    socket = f"unix:{remote.removeprefix('unix:').rpartition('/')[0]}/{bridge}.mgmt"
    flows, refusal = _ask(socket, "dump-aggregate", _FLOWS)
    version, refusal = _ask(socket, "dump-desc", _VERSION) if not refusal else ("", refusal)
    counters = {name: port.counters for name, port in statistics.items()}
    return Switch(
        vswitchd_error=refusal,
        version=version,
        is_waiting=is_waiting,
        datapath=datapath,
        flows=int(flows) if flows else None,
        tunnels=tuple(
            TunnelState(
                port=port,
                bfd_status=bfd_status,
                error=errors.get(port.name, ""),
                received=counters.get(port.name, {}).get("rx_packets", 0),
                sent=counters.get(port.name, {}).get("tx_packets", 0),
            )
            for port, bfd_status in tunnels
        ),
    )


def _ask(socket: str, request: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """Send a request to ovs-vswitchd; return the first group of `pattern` in the answer, or "" and the error."""
    try:
        done = Ofctl(socket).run(request, socket, timeout=_TIMEOUT)
    except BackendError as error:
        return "", str(error)
    match = pattern.search(done.stdout)
    if done.returncode or match is None:
        return "", done.stderr.strip() or f"ovs-ofctl {request}: an answer that makes no sense"
    return match[1], ""
