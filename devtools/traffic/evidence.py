"""What a lab looked like when something went wrong: logs, flows, rules, statuses and packets, in one folder.

`record` keeps each Node's last packets while the lab runs (where tcpdump is there); all else only reads. Every
piece is collected on its own, so that one that cannot be had does not lose the others.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from devtools.lab.lab import Lab
from devtools.lab.topology import Node
from devtools.nodes import netns
from mcagent.model.errors import McagentError

_COMMANDS = {
    "links.txt": ["ip", "-d", "-s", "address"],
    "routes.txt": ["ip", "route", "show", "table", "all"],
    "rules.txt": ["ip", "rule"],
    "neighbours.txt": ["ip", "neighbour"],
    "nft.txt": ["nft", "list", "ruleset"],
    "conntrack.txt": ["conntrack", "-L"],
    "counters.txt": ["nstat", "-az"],
}

# -i: when something was received last, and how often it was sent again; -m: what full buffers dropped ("d")
_SOCKETS = ["ss", "-tuanoim"]

_PACKETS = "packets.pcap"
_RECORD = ("tcpdump", "-i", "any", "-n", "-U", "-s", "200", "-C", "4", "-W", "2", "-Z", "root", "-w")


def record(lab: Lab) -> None:
    """Keep the last packets (4 to 8 MB) of every device of every Node, until the lab is taken down."""
    if shutil.which(_RECORD[0]) is None:
        return
    for _, node in lab.topology.nodes():
        directory = lab.directory(node.name)
        argv = [*_RECORD, str(directory / _PACKETS)]
        lab.state.spawn(f"packets-{node.name}", lab.namespace(node), argv, log=directory / "tcpdump.log")


def collect(lab: Lab, folder: Path) -> Path:
    """Write everything about a lab into a folder (made if need be) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder / "lab.json", (lab.state.directory / "lab.json").read_text)
    for path in lab.state.directory.glob("*.log"):
        _copy(path, folder)
    for cluster in lab.topology.clusters:
        api = lab.state.directory / "api" / cluster.name
        for path in (*api.glob("*.log"), *api.glob("objects.json"), *api.glob("data/*.log")):
            _copy(path, folder / cluster.name)
        for node in cluster.nodes:
            _node(lab, node, folder / cluster.name / node.name)
            for pod in node.pods:
                _command(lab.namespace(pod), _SOCKETS, folder / cluster.name / pod.name / "sockets.txt")
    _command("", ["dmesg"], folder / "kernel.txt")
    for name in ("nft.txt", "counters.txt", "links.txt"):
        _command(lab.underlay, _COMMANDS[name], folder / "underlay" / name)
    return folder


def _node(lab: Lab, node: Node, folder: Path) -> None:
    directory, namespace, ovs = lab.directory(node.name), lab.namespace(node), lab.ovs(node.name)
    for path in (*directory.glob("agent.*"), *directory.glob(f"{_PACKETS}*"), *(directory / "ovs").glob("*.log")):
        _copy(path, folder)
    for name, argv in _COMMANDS.items():
        _command(namespace, argv, folder / name)
    bridge = ovs.mgmt("br-mc")
    _keep(folder / "vsctl.txt", lambda: ovs.vsctl("show"))
    _keep(folder / "interfaces.txt", lambda: ovs.vsctl("list", "interface"))
    _keep(folder / "flows.txt", lambda: ovs.ofctl("dump-flows", bridge))
    _keep(folder / "groups.txt", lambda: ovs.ofctl("dump-groups", bridge))
    _keep(folder / "ports.txt", lambda: ovs.ofctl("dump-ports-desc", bridge))
    _keep(folder / "datapath-flows.txt", lambda: ovs.appctl("dpctl/dump-flows", "-m"))
    _keep(folder / "datapath-conntrack.txt", lambda: ovs.appctl("dpctl/dump-conntrack", "-m"))
    _keep(folder / "status.json", lambda: lab.http(node.name, "/status")[1])
    _keep(folder / "readyz.txt", lambda: lab.http(node.name, "/readyz")[1])
    _keep(folder / "metrics.txt", lambda: lab.http(node.name, "/metrics")[1])


def _command(namespace: str, argv: list[str], path: Path) -> None:
    def run() -> str:
        done = netns.execute(namespace, argv, check=False)
        return done.stdout + done.stderr

    _keep(path, run)


def _keep(path: Path, read: Callable[[], str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_text(read())
    except (McagentError, OSError) as error:
        path.write_text(f"not to be had: {error}\n")


def _copy(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        shutil.copy(path, folder / path.name)
