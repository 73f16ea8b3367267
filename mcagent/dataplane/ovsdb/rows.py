"""Maps resources to rows of the Open_vSwitch database and back.

Owns the mapping, the ownership tags and the replicated part of the schema; source: ovs-vswitchd.conf.db(5). Pure:
knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import (
    Bfd,
    Bridge,
    HostPort,
    OvsdbResource,
    PeerKind,
    TunnelPort,
    TunnelType,
)
from mcagent.model.net import parse_address

OWNER = "mcagent-owner"  # external_ids: the bridge's name, on every row of the agent
PEER_KIND = "mcagent-peer-kind"
PEER = "mcagent-peer"
BFD_SEEN = "mcagent-bfd-seen"  # on an interface; "true" or absent
DRAIN = "mcagent-drain"  # on the bridge; "true" asks this Node to drain, without the API
ACTIVE_ORDER = "mcagent-active-order"  # on the bridge; separated by commas, or absent

Columns = dict[str, Any]

# Of the agent's bridge: only the agent's flows forward packets.
_PROTOCOLS = ["OpenFlow13", "OpenFlow15"]
_BRIDGE: Columns = {
    "fail_mode": ["secure"],
    "stp_enable": False,
    "rstp_enable": False,
    "mcast_snooping_enable": False,
    "controller": [],
}
_BRIDGE_OTHER_CONFIG = {"disable-in-band": "true"}  # no hidden in-band control flows

_STRING, _INTEGER, _BOOLEAN = "string", "integer", "boolean"
_MAP = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}


def _set(atom: object, high: int | str = "unlimited") -> dict[str, object]:
    return {"key": atom, "min": 0, "max": high}


def _rows(table: str) -> dict[str, object]:
    return _set({"type": "uuid", "refTable": table})


def _table(columns: Mapping[str, object]) -> dict[str, object]:
    """Make a table's schema. Keys of `columns` are names separated by spaces, values their type."""
    return {"columns": {name: {"type": kind} for names, kind in columns.items() for name in names.split()}}


# Only these tables and columns are replicated. Statistics change every few seconds on every port;
# `ovsdb.statistics` reads them on request.
SCHEMA: dict[str, object] = {
    "name": "Open_vSwitch",
    "version": "8.0.0",
    "tables": {
        "Open_vSwitch": _table({"bridges": _rows("Bridge"), "next_cfg cur_cfg": _INTEGER}),
        "Bridge": _table(
            {
                "name datapath_type": _STRING,
                "fail_mode": _set(_STRING, 1),
                "protocols": _set(_STRING),
                "stp_enable rstp_enable mcast_snooping_enable": _BOOLEAN,
                "controller": _set("uuid"),
                "ports": _rows("Port"),
                "other_config external_ids": _MAP,
            }
        ),
        "Port": _table({"name": _STRING, "interfaces": _rows("Interface"), "external_ids": _MAP}),
        "Interface": _table(
            {
                "name type": _STRING,
                "mac error": _set(_STRING, 1),
                "mtu_request ofport ofport_request ifindex": _set(_INTEGER, 1),
                "options bfd bfd_status external_ids": _MAP,
            }
        ),
    },
}


def bridge_columns(bridge: Bridge, external_ids: Mapping[str, str], other_config: Mapping[str, str]) -> Columns:
    """Return the columns of a bridge's row, without name and ports.

    The maps are the row's present ones: keys of other programs are kept.
    """
    own_ids = {OWNER: bridge.name, ACTIVE_ORDER: ",".join(bridge.active_order)}
    return {
        **_BRIDGE,
        "datapath_type": str(bridge.datapath),
        "protocols": _PROTOCOLS,
        "other_config": {**other_config, **_BRIDGE_OTHER_CONFIG},
        "external_ids": _with(external_ids, own_ids),
    }


def _with(external_ids: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the map with the agent's keys, without those whose value is empty."""
    return {key: value for key, value in {**external_ids, **own}.items() if value or key not in own}


def tags(port: HostPort | TunnelPort) -> dict[str, str]:
    """Return the ownership tags of a port and of its interface."""
    if isinstance(port, HostPort):
        return {OWNER: port.bridge}
    return {OWNER: port.bridge, PEER_KIND: str(port.peer_kind), PEER: port.peer}


def interface_columns(port: HostPort | TunnelPort, external_ids: Mapping[str, str]) -> Columns:
    """Return the columns of a port's Interface row, without name; keys of other programs are kept."""
    if isinstance(port, HostPort):
        bfd_seen = False
        columns: Columns = {
            "type": "internal",
            "mac": [port.mac],
            "mtu_request": [port.mtu] if port.mtu else [],
            "options": {},
            "bfd": {},
        }
    else:
        bfd_seen = port.bfd_seen
        # csum is left at its default: off over IPv4 (as peers have it), and OVS turns it on over IPv6.
        options = {
            "remote_ip": str(port.remote_ip),
            "local_ip": str(port.local_ip or ""),
            "ttl": str(port.ttl or ""),
            "dst_port": str(port.dst_port or ""),
            "key": "flow",
            # The kernel's datapath looks up the route of each packet that has a mark, and otherwise of one packet
            # of a datapath flow (ip_tunnel_dst_cache_usable in include/net/ip_tunnels.h). The userspace datapath
            # drops packets with a mark: its copies of the kernel's routes are for mark 0 (lib/ovs-router.c).
            "egress_pkt_mark": str(port.egress_mark or ""),
        }
        columns = {
            "type": str(port.type),
            "mac": [],
            "mtu_request": [],
            "options": {name: value for name, value in options.items() if value},
            "bfd": _bfd_map(port.bfd),
        }
    own_ids = {**tags(port), BFD_SEEN: "true" if bfd_seen else ""}
    return {**columns, "ofport_request": port.ofport, "external_ids": _with(external_ids, own_ids)}


def _bfd_map(bfd: Bfd | None) -> dict[str, str]:
    if bfd is None:
        return {}
    values = {"enable": "true", "min_tx": str(bfd.min_tx), "min_rx": str(bfd.min_rx), "mult": str(bfd.mult)}
    # Without it packets of Pods to UDP port 3784 are handled as the peer's BFD (bfd_should_process_flow in OVS'
    # lib/bfd.c): never forwarded, and each processed by ovs-vswitchd.
    only = {"bfd_remote_dst_mac": bfd.destination_mac} if bfd.destination_mac else {}
    return values | only | ({"cpath_down": "true"} if bfd.cpath_down else {})


def read_bridge(row: Any) -> Bridge:  # a row of the IDL
    """Convert a row of table Bridge; `intact`: its other columns have the agent's values."""
    datapath = DatapathType.NETDEV if row.datapath_type == DatapathType.NETDEV else DatapathType.SYSTEM
    intact = (
        all(getattr(row, column) == value for column, value in _BRIDGE.items())
        and sorted(row.protocols) == _PROTOCOLS
        and row.other_config.items() >= _BRIDGE_OTHER_CONFIG.items()
    )
    order = tuple(name for name in row.external_ids.get(ACTIVE_ORDER, "").split(",") if name)
    return Bridge(name=row.name, datapath=datapath, active_order=order, intact=intact)


def read_port(bridge: str, row: Any, ofport: int, port_tags: Mapping[str, str]) -> OvsdbResource | None:
    """Convert a row of table Interface; None: it is not the agent's, or of another type.

    `ofport` is its number (`read_ofport`), `port_tags` are the external_ids of its row in table Port.
    """
    # Read once: every access to a row of the IDL makes a copy.
    values = {
        name: getattr(row, name) for name in ("type", "external_ids", "options", "bfd", "mac", "mtu_request")
    }
    if OWNER not in values["external_ids"] and OWNER not in port_tags:
        return None
    if values["type"] == "internal":
        mac, mtu = "".join(values["mac"]), next(iter(values["mtu_request"]), 0)
        port: HostPort | TunnelPort = HostPort(bridge=bridge, name=row.name, ofport=ofport, mac=mac, mtu=mtu)
    elif values["type"] in set(TunnelType):
        try:
            port = _read_tunnel(bridge, row.name, ofport, values)
        except (ValueError, KeyError):  # another program wrote values that the agent never writes
            port = _read_tunnel(bridge, row.name, ofport, values | {"options": {}, "external_ids": {}, "bfd": {}})
    else:
        return None
    expected = interface_columns(port, values["external_ids"])
    intact = tags(port).items() <= port_tags.items() and values.items() <= expected.items()
    intact = intact and not (values["type"] == "internal" and lost_device(row))
    return port if intact else replace(port, intact=False)


def lost_device(row: Any) -> bool:  # a row of the IDL
    """Return whether ovs-vswitchd reports that the device of an Interface does not exist any more.

    That of the userspace datapath is a tap device, which other programs can delete. Tunnels have number 0, too.
    """
    return bool(row.ifindex == [0])


def _read_tunnel(bridge: str, name: str, ofport: int, values: Columns) -> TunnelPort:
    options, external_ids, bfd = values["options"], values["external_ids"], values["bfd"]
    return TunnelPort(
        bridge=bridge,
        name=name,
        type=TunnelType(values["type"]),
        remote_ip=parse_address(options.get("remote_ip", "0.0.0.0")),
        local_ip=parse_address(options["local_ip"]) if "local_ip" in options else None,
        ttl=int(options.get("ttl", "0")),
        dst_port=int(options.get("dst_port", "0")),
        ofport=ofport,
        peer_kind=PeerKind(external_ids.get(PEER_KIND, PeerKind.REMOTE)),
        peer=external_ids.get(PEER, ""),
        bfd=_read_bfd(bfd) if bfd.get("enable") == "true" else None,
        bfd_seen=external_ids.get(BFD_SEEN) == "true",
        egress_mark=int(options.get("egress_pkt_mark", "0")),
    )


def _read_bfd(values: Mapping[str, str]) -> Bfd:
    return Bfd(
        min_tx=int(values["min_tx"]),
        min_rx=int(values["min_rx"]),
        mult=int(values["mult"]),
        cpath_down=values.get("cpath_down") == "true",
        destination_mac=values.get("bfd_remote_dst_mac", ""),
    )


def read_ofport(row: Any) -> int:
    """Return the number in use or, until ovs-vswitchd has configured the port, the requested one; -1: none."""
    return next(iter([*row.ofport, *row.ofport_request]), -1)
