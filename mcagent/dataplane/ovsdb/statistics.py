"""Counters of the agent's ports, read from ovsdb-server on request.

They are not part of the replica: ovs-vswitchd writes them every few seconds for every port (other_config
stats-update-interval), and processing these updates would waste processor time.
"""

from __future__ import annotations

from mcagent.dataplane.ovsdb.query import select
from mcagent.dataplane.ovsdb.rows import OWNER
from mcagent.model.dataplane.resources import PortStatistics
from mcagent.model.errors import BackendError


def fetch(remote: str, bridge: str) -> dict[str, PortStatistics]:
    """Read the statistics of the ports with the tag of `bridge`, by name, including its host port.

    Raises BackendError when ovsdb-server cannot be reached or does not answer.
    """
    operation = {
        "op": "select",
        "table": "Interface",
        "where": [["external_ids", "includes", ["map", [[OWNER, bridge]]]], ["name", "!=", bridge]],
        "columns": ["name", "statistics", "link_state"],
    }
    (rows,) = select(remote, "read statistics", operation)
    try:
        return {
            row["name"]: PortStatistics(counters=dict(row["statistics"][1]), link_up=row["link_state"] == "up")
            for row in rows
        }
    except (KeyError, TypeError, IndexError):
        raise BackendError("ovsdb", "read statistics", remote, "a malformed answer") from None
