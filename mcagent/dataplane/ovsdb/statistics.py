"""Counters of our ports, asked of ovsdb-server when somebody wants them.

They are not part of the replica: ovs-vswitchd writes them every few seconds for every port (other_config
stats-update-interval), which would keep the agent busy with numbers that nobody reads.
"""

from __future__ import annotations

import json
import socket

from mcagent.dataplane.ovsdb.json_stream import StreamParser
from mcagent.dataplane.ovsdb.rows import OWNER
from mcagent.model.errors import BackendError
from mcagent.model.resources import PortStatistics

TIMEOUT = 5.0  # seconds for each part of the answer


def fetch(remote: str, bridge: str) -> dict[str, PortStatistics]:
    """Return the statistics of the ports that carry `bridge`'s tag, by name, its host port included.

    Raises BackendError when ovsdb-server cannot be reached or does not answer.
    """
    select = {
        "op": "select",
        "table": "Interface",
        "where": [["external_ids", "includes", ["map", [[OWNER, bridge]]]], ["name", "!=", bridge]],
        "columns": ["name", "statistics", "link_state"],
    }
    request = {"id": 0, "method": "transact", "params": ["Open_vSwitch", select]}
    answer = StreamParser()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(remote.removeprefix("unix:"))
            connection.sendall(json.dumps(request).encode())
            while not answer.is_done():
                part = connection.recv(1 << 20)
                if not part:
                    raise OSError("connection closed")
                answer.feed(part.decode())
        rows = answer.finish()["result"][0]["rows"]
    except OSError as error:
        raise BackendError("ovsdb", "read statistics", remote, error.strerror or str(error)) from None
    except (KeyError, TypeError, IndexError, UnicodeError):
        raise BackendError("ovsdb", "read statistics", remote, "an answer that makes no sense") from None
    return {
        row["name"]: PortStatistics(counters=dict(row["statistics"][1]), link_up=row["link_state"] == "up")
        for row in rows
    }
