"""The dataplane of this Node as texts for a bug report. Reads only; what fails says why in its place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_addresses, read_links
from mcagent.dataplane.netlink.routes import RT_TABLE_MAIN, read_routes
from mcagent.dataplane.nft.observe import nft_errors, run_nft
from mcagent.dataplane.openflow.ofctl import Ofctl
from mcagent.dataplane.ovsdb.query import select
from mcagent.model.config import Config
from mcagent.model.errors import BackendError

_REQUESTS = ("show", "dump-flows", "dump-groups", "dump-group-stats", "dump-meters", "dump-ports")
_TABLES = {  # no columns that may hold keys: SSL and Manager are left out, and so are others' options
    "Open_vSwitch": ("ovs_version", "db_version", "datapath_types", "iface_types", "next_cfg", "cur_cfg"),
    "Bridge": ("name", "datapath_type", "fail_mode", "protocols", "external_ids", "other_config", "status"),
    "Interface": (
        "name", "type", "ofport", "error", "mtu", "bfd", "bfd_status", "statistics", "link_state", "admin_state",
        "external_ids",
    ),
}  # fmt: skip
_LOGS = ("/var/log/openvswitch/ovs-vswitchd.log", "/var/log/openvswitch/ovsdb-server.log")
_SWITCHES = (
    "ipv4/ip_forward", "ipv4/conf/all/rp_filter", "ipv4/ping_group_range", "netfilter/nf_conntrack_count",
    "netfilter/nf_conntrack_max",
)  # fmt: skip
LOG = 2 * 1024 * 1024  # bytes of a log, from its end


def dump(config: Config, ovsdb: str, log: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and text of each part. `ovsdb`: "unix:PATH"; `log`: the agent's, where that is a file."""
    directory = ovsdb.removeprefix("unix:").rpartition("/")[0]
    bridge = f"unix:{directory}/{config.bridge}.mgmt"
    for request in _REQUESTS:
        yield f"openflow/{request}.txt", _openflow(bridge, request)
    for table, columns in _TABLES.items():
        yield f"ovsdb/{table}.json", _ovsdb(ovsdb, table, columns)
    yield "nft.txt", _nft()
    yield "network.txt", "\n".join(_network(config)) + "\n"
    yield "sysctl.txt", "".join(f"{name} = {_tail(Path('/proc/sys/net') / name)}\n" for name in _SWITCHES)
    for path in (*map(Path, _LOGS), Path(directory) / "ovs-vswitchd.log", *([log] if log else ())):
        if path.is_file():
            yield f"logs/{path.name}", _tail(path)
    journal = _run("journalctl", "-u", "mcagent", "-n", "5000", "--no-pager")
    if journal:
        yield "logs/journal.txt", journal[-LOG:]


def _openflow(bridge: str, request: str) -> str:
    try:
        done = Ofctl(bridge).run(request, bridge)
    except BackendError as error:
        return f"{error}\n"
    return done.stdout or done.stderr


def _ovsdb(remote: str, table: str, columns: tuple[str, ...]) -> str:
    try:
        (rows,) = select(remote, "read", {"op": "select", "table": table, "where": [], "columns": list(columns)})
    except BackendError as error:
        return f"{error}\n"
    return json.dumps(rows, indent=1) + "\n"


def _nft() -> str:
    try:
        code, text, words = run_nft(["-t", "list", "ruleset"])
    except OSError as error:
        return f"{error}\n"
    return text if code == 0 else f"{nft_errors(words)}\n"


def _network(config: Config) -> Iterator[str]:
    try:
        with closing(NetlinkSocket()) as netlink:
            names = {}
            for link in read_links(netlink):
                names[link.index] = link.state.name
                yield f"{link.index} {link.kind or '-'} {link.state}"
            for address in read_addresses(netlink):
                yield f"address {address.address}/{address.prefixlen} dev {names.get(address.index, '?')}"
            for table in (*config.route_tables, RT_TABLE_MAIN):
                for route in read_routes(netlink, table):
                    via = f" via {route.gateway}" if route.gateway else ""
                    where = f"{route.destination}{via} dev {names.get(route.oif, '-')}"
                    yield f"table {table}: {where} proto {route.protocol} metric {route.metric}"
    except BackendError as error:
        yield str(error)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2) if path.stat().st_size > LOG else None
            if file.tell():
                file.seek(-LOG, 2)
            return file.read(LOG).decode(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return ""
