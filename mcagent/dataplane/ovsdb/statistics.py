"""Counters and liveness of our ports, asked of ovsdb-server when somebody wants them.

They are not part of the replica: ovs-vswitchd writes them every few seconds for every port (other_config
stats-update-interval), which would keep the agent busy with numbers that nobody reads.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcagent.dataplane.ovsdb.rows import OWNER, PEER, PEER_KIND
from mcagent.model.errors import BackendError

TIMEOUT = 5.0  # seconds for the whole query


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStatistics:
    """One port as of ovs-vswitchd's last update (every 5 s by default). Counters start with the port.

    Of the host port, "received" is what the Node's kernel sent in the userspace datapath, and what the Node's
    kernel received in the kernel's (seen with OVS 3.1 on Linux 7.2): only tunnels' directions are sure.
    `bfd_status` is empty where BFD is off; its keys are those of ovs-vswitchd.conf.db(5) ("state", ...).
    """

    peer_kind: str
    peer: str
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_packets: int = 0
    tx_packets: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    rx_errors: int = 0
    tx_errors: int = 0
    link_up: bool = False
    bfd_status: Mapping[str, str] = field(default_factory=dict)


_COUNTERS = tuple(name for name in PortStatistics.__dataclass_fields__ if name.startswith(("rx_", "tx_")))


def fetch(remote: str, bridge: str) -> dict[str, PortStatistics]:
    """Return the statistics of the ports that carry `bridge`'s tag, by name, its host port included.

    Raises BackendError when ovsdb-server cannot be reached or does not answer.
    """
    request = {
        "id": 0,
        "method": "transact",
        "params": [
            "Open_vSwitch",
            {
                "op": "select",
                "table": "Interface",
                "where": [["external_ids", "includes", ["map", [[OWNER, bridge]]]], ["name", "!=", bridge]],
                "columns": ["name", "statistics", "link_state", "bfd_status", "external_ids"],
            },
        ],
    }
    try:
        answer = _exchange(remote.removeprefix("unix:"), json.dumps(request).encode())
        rows = answer["result"][0]["rows"]
    except OSError as error:
        raise BackendError("ovsdb", "read statistics", remote, error.strerror or str(error)) from None
    except (KeyError, TypeError, IndexError):
        raise BackendError("ovsdb", "read statistics", remote, "an answer that makes no sense") from None
    return {row["name"]: _statistics(row) for row in rows}


def _exchange(path: str, request: bytes) -> Any:  # whatever JSON the server sent
    deadline = time.monotonic() + TIMEOUT
    received = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(path)
        connection.sendall(request)
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(1 << 20)
            if not part:
                raise OSError("connection closed")
            received += part
            # JSON-RPC over a stream has no framing: it is whole when it parses, which only "}" can end.
            if received.endswith(b"}"):
                with contextlib.suppress(ValueError):
                    return json.loads(received)


def _statistics(row: Mapping[str, Any]) -> PortStatistics:
    counters = dict(row["statistics"][1])
    external_ids = dict(row["external_ids"][1])
    return PortStatistics(
        peer_kind=external_ids.get(PEER_KIND, ""),
        peer=external_ids.get(PEER, ""),
        link_up=row["link_state"] == "up",
        bfd_status=dict(row["bfd_status"][1]),
        **{name: counters.get(name, 0) for name in _COUNTERS},
    )
