"""Open vSwitch as the doctor sees it: the database by a connection of its own, ovs-vswitchd by one request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mcagent.core.doctor.observed import SwitchSeen, TunnelSeen
from mcagent.dataplane.openflow.ofctl import Ofctl
from mcagent.dataplane.ovsdb.query import select
from mcagent.dataplane.ovsdb.rows import BFD_SEEN, OWNER, PEER, PEER_KIND
from mcagent.model.errors import BackendError
from mcagent.model.net import parse_address

_FLOWS = re.compile(r"\bflow_count=(\d+)")
_VERSION = re.compile(r"^Software: (\S+)", re.M)  # of ovs-vswitchd (OFPMP_DESC)
TIMEOUT = 3  # seconds for an answer of ovs-vswitchd
_COLUMNS = ("name", "type", "options", "bfd", "bfd_status", "statistics", "error", "external_ids")


def see_switch(remote: str, bridge: str) -> SwitchSeen:
    """Look at the database at "unix:PATH" and at our bridge. Raises nothing: what fails is in the result."""
    ours = ["external_ids", "includes", ["map", [[OWNER, bridge]]]]
    try:
        bridges, interfaces = select(
            remote,
            "read",
            {"op": "select", "table": "Bridge", "where": [ours], "columns": ["name", "datapath_type"]},
            {"op": "select", "table": "Interface", "where": [ours], "columns": list(_COLUMNS)},
        )
        seen = SwitchSeen(
            datapath=next((one["datapath_type"] or "system" for one in bridges), ""),
            tunnels=tuple(sorted(_tunnels(interfaces), key=lambda one: one.name)),
        )
    except BackendError as error:
        return SwitchSeen(error=str(error))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        return SwitchSeen(error=f"ovsdb: {remote}: rows that make no sense: {error!r}")
    directory = remote.removeprefix("unix:").rpartition("/")[0]
    if not seen.datapath:
        return seen
    socket = f"unix:{directory}/{bridge}.mgmt"
    flows, refusal = _asked(socket, "dump-aggregate", _FLOWS)
    version, refusal = _asked(socket, "dump-desc", _VERSION) if not refusal else ("", refusal)
    return replace(seen, version=version, flows=int(flows) if flows else None, vswitchd_error=refusal)


def _asked(socket: str, request: str, wanted: re.Pattern[str]) -> tuple[str, str]:
    """Return what ovs-vswitchd answers to a request, or why it does not."""
    try:
        done = Ofctl(socket).run(request, socket, timeout=TIMEOUT)
    except BackendError as error:
        return "", str(error)
    found = wanted.search(done.stdout)
    if done.returncode or found is None:
        return "", done.stderr.strip() or f"ovs-ofctl {request}: an answer that makes no sense"
    return found[1], ""


def _tunnels(rows: list[dict[str, Any]]) -> Iterator[TunnelSeen]:
    for row in rows:
        ids, options = _map(row["external_ids"]), _map(row["options"])
        if PEER not in ids or "remote_ip" not in options:
            continue
        status, counters = _map(row["bfd_status"]), _map(row["statistics"])
        yield TunnelSeen(
            name=row["name"],
            peer_kind=ids.get(PEER_KIND, ""),
            peer=ids[PEER],
            remote=parse_address(options["remote_ip"]),
            error=str(_optional(row["error"])),
            bfd=_map(row["bfd"]).get("enable") == "true",
            seen=ids.get(BFD_SEEN) == "true",
            state=status.get("state", ""),
            forwarding=status.get("forwarding") == "true",
            diagnostic=status.get("diagnostic", ""),
            remote_state=status.get("remote_state", ""),
            remote_diagnostic=status.get("remote_diagnostic", ""),
            received=int(counters.get("rx_packets", 0)),
            sent=int(counters.get("tx_packets", 0)),
        )


def _map(value: Any) -> Mapping[str, Any]:
    """Read a map as RFC 7047, 5.1 writes it: ["map", [[key, value], ...]]."""
    return dict(value[1])


def _optional(value: Any) -> object:
    """Read a value that may be missing: an empty set is ["set", []]."""
    return "" if isinstance(value, list) else value
