"""A Node for the checks of the doctor, with readings as values."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from mcagent.agent.config import Settings
from mcagent.api.doctor import CheckFinding, FindingLevel
from mcagent.api.status import EncryptionStatus, Status, Summary
from mcagent.dataplane.netlink.programs import DevicePrograms
from mcagent.doctor.catalogue import Scope, entries, examine
from mcagent.doctor.check import NOT_READ
from mcagent.doctor.checks.node import (
    api,
    conntrack,
    datapath,
    forwarding,
    masquerade,
    plan,
    routes,
    rp_filter,
    tunnel_nat,
)
from mcagent.doctor.checks.node.api import ApiServer
from mcagent.doctor.checks.node.forwarding import ForwardingSwitches
from mcagent.doctor.checks.node.masquerade import Connections
from mcagent.doctor.checks.node.routes import RouteLookup, RouteLookups
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings import chains as chain_readings
from mcagent.doctor.readings import cni as cni_readings
from mcagent.doctor.readings import switch as switch_readings
from mcagent.doctor.readings import underlay as underlay_readings
from mcagent.doctor.readings.probe import ProbedPath
from mcagent.doctor.readings.switch import Switch, TunnelState
from mcagent.doctor.readings.underlay import Underlay
from mcagent.model.config import Config
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Bfd, PeerKind, TunnelPort, TunnelType
from mcagent.model.net import Address

PEER: Address = ip_address("192.168.2.11")

PORT = TunnelPort(
    bridge="br-mc",
    name="mcr-1",
    type=TunnelType.GENEVE,
    remote_ip=PEER,
    dst_port=0,
    ofport=7,
    peer_kind=PeerKind.REMOTE,
    peer="west",
    bfd=Bfd(min_tx=100, min_rx=100, mult=3),
    bfd_seen=True,
)

UP = {"state": "up", "forwarding": "true", "remote_state": "up"}
TUNNEL = TunnelState(port=PORT, bfd_status=UP, received=100, sent=100)
PATH = ProbedPath(address=PEER, size=1500, small=True, full=True, passes=1500, protocols=("icmp",))

LOOKUP = RouteLookup(
    destination=ip_network("10.2.0.0/16"), address=ip_address("10.2.128.0"), device="mc-gw0", table=28003
)

PODS = ip_network("10.1.1.0/24")
SWITCH = Switch(version="3.1.0", datapath=DatapathType.SYSTEM, flows=50, tunnels=(TUNNEL,))
UNDERLAY = Underlay(host_mtu=1450, wanted_mtu=1450, uplink="eth0", uplink_mtu=1500, strict=True)
API = ApiServer(server="https://api:6443", clock=0.3, checked=20)

STATUS = Status(
    version="1", ready=True, alive=True, summary=Summary(role="gateway"), encryption=EncryptionStatus()
)

READERS = {
    "switch": switch_readings.switch,
    "kernel_datapath": datapath.kernel_has_datapath,
    "underlay": underlay_readings.underlay,
    "paths": underlay_readings.paths,
    "api": api.api_server,
    "lookups": routes.lookups,
    "return_devices": rp_filter.return_devices,
    "dropped": rp_filter.dropped,
    "chains": chain_readings.chains,
    "legacy_chains": chain_readings.legacy_chains,
    "pods": masquerade.published_pods,
    "connections": masquerade.connections,
    "ends": tunnel_nat.tunnel_addresses,
    "rules": cni_readings.foreign_rules,
    "devices": cni_readings.devices,
    "programs": cni_readings.programs,
    "plugins": cni_readings.plugins,
    "forwarding": forwarding.forwarding,
    "table_use": conntrack.use,
    "differences": plan.differences,
    "of_agent": plan.of_agent,
}

READINGS: Mapping[str, object] = {
    "switch": SWITCH,
    "kernel_datapath": True,
    "underlay": UNDERLAY,
    "paths": (PATH,),
    "api": API,
    "lookups": RouteLookups(lookups=(LOOKUP,), rule_exists=True),
    "return_devices": ((PEER, "eth0"),),
    "dropped": 0,
    "chains": (),
    "legacy_chains": (),
    "pods": (PODS,),
    "connections": Connections(),
    "ends": (ip_network("192.168.2.11/32"), ip_network("2001:db8::/126")),
    "rules": (),
    "devices": {},
    "programs": DevicePrograms(),
    "plugins": (),
    "forwarding": ForwardingSwitches(),
    "table_use": TableUse(entries=100, limit=65536),
    "differences": (),
    "of_agent": None,
}


class SpiedNode(ExaminedNode):
    """A Node that records which readers were called."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.requested: set[object] = set()

    def read(self, reader: Any) -> Any:
        """Return the reading."""
        self.requested.add(reader)
        return super().read(reader)


def node(
    status: Status = STATUS,
    *,
    error: str = "",
    problems_error: str = "",
    config: Mapping[str, Any] | None = None,
    **readings: object,
) -> SpiedNode:
    """Return a Node that is well but for these values; nothing of this machine is read."""
    read = {READERS[name]: value for name, value in {**READINGS, **readings}.items()}
    begun = {entry.begin: None for entry in entries(Scope.NODE) if entry.begin is not None}
    settings = Settings(core=Config(node_name="n1", **(config or {})))
    return SpiedNode(settings, status, error, readings={**read, **begun}, problems_error=problems_error)


def findings(examined: ExaminedNode) -> tuple[CheckFinding, ...]:
    """Return what is found on a Node."""
    return examine(Scope.NODE, examined)


def told(examined: ExaminedNode) -> dict[str, str]:
    """Return the reasons of all findings that are not fine; of those that were skipped, the checks."""
    return {
        finding.reason if finding.reason not in ("", NOT_READ) else finding.check: finding.level
        for finding in findings(examined)
        if finding.level != FindingLevel.OK
    }
