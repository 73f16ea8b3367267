"""Values that the tests of the OVS backends share."""

from __future__ import annotations

from ipaddress import ip_address

from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Bfd, Bridge, HostPort, PeerKind, TunnelPort, TunnelType

# The kernel's datapath where there is one (the test kernel), so that both are tried.
DATAPATH = DatapathType.SYSTEM if kernel_datapath_exists() else DatapathType.NETDEV
BRIDGE = Bridge(name="br-mc", datapath=DATAPATH)
HOST_PORT = HostPort(bridge="br-mc", name="mc-gw0", ofport=1, mac="0a:6d:63:00:00:01", mtu=1450)


def tunnel(number: int, **changes: object) -> TunnelPort:
    """Return a tunnel port of that OpenFlow port number."""
    values: dict[str, object] = {
        "bridge": "br-mc",
        "name": f"mcr-{number:011x}",
        "type": TunnelType.GENEVE,
        "remote_ip": ip_address(0x0A640000 + number),
        "dst_port": 0,
        "ofport": number,
        "peer_kind": PeerKind.REMOTE,
        "peer": f"cluster-{number}",
    }
    return TunnelPort(**(values | changes))  # type: ignore[arg-type]


BFD = Bfd(min_tx=1000, min_rx=500, mult=4, cpath_down=True)
