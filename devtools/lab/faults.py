"""Faults that a lab's Nodes and network can be given, and taken from them again.

Owns how each is made: links, processes by the lab's own records, and drop rules in the underlay (which see every
packet whatever the datapath). Says nothing about what should come of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster
from devtools.nodes import netns, node, underlay
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.pipeline.declaration import GROUP_STANDBY

BRIDGE = "br-mc"
SETTLE_TIMEOUT = 90.0
CALM = 0.5  # seconds in which nothing may change


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault by its name: `inject` makes it and `heal` ends it; both return at once when it is done."""

    name: str
    inject: Callable[[], object]
    heal: Callable[[], object]


def place(lab: Lab, name: str) -> tuple[int, int]:
    """Return the numbers of a Node's cluster and of the Node in it, as the underlay's ports are named."""
    cluster, node = lab.topology.node(name)
    return lab.topology.clusters.index(cluster) + 1, cluster.nodes.index(node) + 1


def link_cut(lab: Lab, *names: str) -> Fault:
    """Pull the cables of Nodes."""

    def switch(*, up: bool) -> None:
        for name in names:
            underlay.set_link(lab.underlay, *place(lab, name), up=up)

    return Fault(name="link cut", inject=lambda: switch(up=False), heal=lambda: switch(up=True))


def vswitchd_killed(lab: Lab, name: str) -> Fault:
    """SIGKILL a Node's ovs-vswitchd; healed by starting it again."""

    def inject() -> None:
        os.kill(lab.ovs(name).pids["ovs-vswitchd"], signal.SIGKILL)

    return Fault(name="vswitchd killed", inject=inject, heal=lambda: _start_vswitchd(lab, name))


def _start_vswitchd(lab: Lab, name: str) -> None:
    ovs = lab.ovs(name)
    wait_until(lambda: "ovs-vswitchd" not in ovs.pids, f"ovs-vswitchd of {name} to end")
    ovs.start_vswitchd()
    if lab.userspace:
        cluster, _ = lab.topology.node(name)
        node.prime_neighbours(ovs, cluster, cluster_number=place(lab, name)[0])


def _path_down(ovs: OvsInstance) -> None:
    """Do what systemd/mcagent-path-down.service does before ovs-vswitchd starts."""
    conditions = ("external_ids:mcagent-owner=br-mc", "bfd:enable=true")
    names = ovs.vsctl("--bare", "--columns=name", "find", "interface", *conditions).split()
    sets = [word for interface in names for word in ("--", "set", "interface", interface, "bfd:cpath_down=true")]
    if sets:
        ovs.vsctl("--no-wait", *sets)


def node_gone(lab: Lab, name: str) -> Fault:
    """Everything of a Node stops at once: its link, its Open vSwitch and its agent."""
    cut = link_cut(lab, name)

    def inject() -> None:
        cut.inject()
        agent = lab.state.process(f"agent-{name}")
        pids = list(lab.ovs(name).pids.values()) + ([agent.pid] if agent is not None and agent.alive else [])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def heal() -> None:
        ovs = lab.ovs(name)
        lab.stop_agent(name)  # its record only: it has ended
        wait_until(lambda: not ovs.pids, f"Open vSwitch of {name} to end")
        ovs.start_ovsdb()
        cut.heal()
        _path_down(ovs)
        _start_vswitchd(lab, name)
        lab.start_agent(name)

    return Fault(name="Node gone", inject=inject, heal=heal)


def _rules(
    lab: Lab, table: str, lines: Iterable[tuple[str, str]]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return how to add and to remove drop rules of the underlay: (from a Node or to it, match and verdict)."""
    all_lines = list(lines)
    text = f"table bridge {table} {{\n"
    for way, hook, priority in (("from", "prerouting", -310), ("to", "postrouting", 10)):
        rules = "\n".join(f"    {line}" for side, line in all_lines if side == way)
        text += f"  chain {way} {{\n    type filter hook {hook} priority {priority};\n{rules}\n  }}\n"

    def inject() -> None:
        netns.execute(lab.underlay, ["nft", "-f", "-"], stdin=text + "}\n")

    def heal() -> None:
        netns.execute(lab.underlay, ["nft", "delete", "table", "bridge", table], check=False)

    return inject, heal


def _table(name: str, what: str) -> str:
    return "fault_" + re.sub(r"\W", "_", f"{name}_{what}")


def loses(lab: Lab, name: str, *peers: str) -> Fault:
    """A Node and some others no longer reach each other; everything else works."""
    addresses = [str(lab.topology.node(peer)[1].address) for peer in peers]
    inject, heal = _apart(lab, name, f"loses_{len(peers)}_{peers[0]}", *addresses)
    return Fault(name="loses a peer" if len(peers) == 1 else "loses peers", inject=inject, heal=heal)


def loses_api(lab: Lab, name: str) -> Fault:
    """A Node no longer reaches its API server; other Nodes do, and it reaches all of them."""
    inject, heal = _apart(lab, name, "loses_api", str(lab.topology.node(name)[0].api_address))
    return Fault(name="loses the API server", inject=inject, heal=heal)


def port_blocked(lab: Lab, name: str, peer: str, port: int = 6081, *, one_way: bool = False) -> Fault:
    """UDP to this port is lost between two Nodes, both ways or only from the first to the second."""
    address, other = (str(lab.topology.node(node)[1].address) for node in (name, peer))
    ways = [(address, other)] if one_way else [(address, other), (other, address)]
    lines = [("from", f"ip saddr {source} ip daddr {to} udp dport {port} drop") for source, to in ways]
    inject, heal = _rules(lab, _table(name, f"port_{port}_{peer}"), lines)
    return Fault(name="UDP port blocked", inject=inject, heal=heal)


def small_mtu(lab: Lab, name: str, peer: str, mtu: int) -> Fault:
    """Packets between two Nodes of more than `mtu` bytes are lost without an error: a black hole."""
    address, other = (str(lab.topology.node(node)[1].address) for node in (name, peer))
    lines = [
        ("from", f"ip saddr {source} ip daddr {to} ip length > {mtu} drop")
        for source, to in ((address, other), (other, address))
    ]
    inject, heal = _rules(lab, _table(name, f"mtu_{peer}"), lines)
    return Fault(name=f"MTU of {mtu} on the way", inject=inject, heal=heal)


def _apart(lab: Lab, name: str, what: str, *addresses: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return how to keep a Node and some addresses from each other, and how to end that."""
    address, peers = lab.topology.node(name)[1].address, ", ".join(addresses)
    lines = [("from", f"ip saddr {address} ip daddr {{ {peers} }} drop")]
    lines += [("from", f"ip saddr {{ {peers} }} ip daddr {address} drop")]
    return _rules(lab, _table(name, what), lines)


def loses_cluster(lab: Lab, name: str, other: Cluster) -> Fault:
    """A Node reaches no Node of another cluster any more."""
    fault = loses(lab, name, *(node.name for node in other.nodes))
    return Fault(name="loses the remote cluster", inject=fault.inject, heal=fault.heal)


def one_way(lab: Lab, name: str, *, outgoing: bool) -> Fault:
    """Everything that a Node sends (or everything sent to it) is lost; the other direction works."""
    port = underlay.port(*place(lab, name))
    line = ("from", f'iifname "{port}" drop') if outgoing else ("to", f'oifname "{port}" drop')
    inject, heal = _rules(lab, _table(name, f"one_way_{int(outgoing)}"), [line])
    return Fault(
        name="what it sends is lost" if outgoing else "what is sent to it is lost", inject=inject, heal=heal
    )


def lossy(lab: Lab, name: str, share: float = 0.3) -> Fault:
    """This share of what a Node sends, and of what is sent to it, is lost at random."""
    port = underlay.port(*place(lab, name))
    chance = f"numgen random mod 100 < {round(100 * share)} drop"
    lines = [("from", f'iifname "{port}" {chance}'), ("to", f'oifname "{port}" {chance}')]
    inject, heal = _rules(lab, _table(name, "lossy"), lines)
    return Fault(name=f"{share:.0%} loss", inject=inject, heal=heal)


def agent_killed(lab: Lab, name: str) -> Fault:
    """SIGKILL a Node's agent; healed by starting it again."""
    return Fault(
        name="agent killed",
        inject=lambda: lab.stop_agent(name, kill=True),
        heal=lambda: lab.start_agent(name),
    )


def upgrade_agent(lab: Lab, name: str) -> None:
    """End a Node's agent in an orderly way, and start another."""
    lab.stop_agent(name)
    lab.start_agent(name)


def api_gone(lab: Lab, cluster: Cluster) -> Fault:
    """A cluster's API server is stopped."""
    return Fault(
        name="API server gone",
        inject=lambda: lab.stop_api(cluster.name),
        heal=lambda: lab.start_api(cluster),
    )


# --- whether all is well again ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A BFD session as ovs-vswitchd tells it (bfd/show). Intervals in milliseconds."""

    port: str
    up: bool
    forwarding: bool
    tx: int
    rx: int


def sessions(lab: Lab, name: str) -> list[Session]:
    """Return a Node's BFD sessions; none when its ovs-vswitchd does not answer."""
    try:
        text = lab.ovs(name).appctl("bfd/show")
    except LabError:
        return []
    states = []
    for block in re.split(r"^---- ", text, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^\s*([A-Za-z ]+?): +(.*)$", block, flags=re.MULTILINE))
        states.append(
            Session(
                port=block.split(" ", 1)[0],
                up=fields.get("Local Session State") == fields.get("Remote Session State") == "up",
                forwarding=fields.get("Forwarding") == "true",
                tx=_milliseconds(fields.get("TX Interval", "")),
                rx=_milliseconds(fields.get("RX Interval", "")),
            )
        )
    return states


def _milliseconds(text: str) -> int:
    match = re.search(r"(\d+)ms", text)
    return int(match[1]) if match else 0


def groups(lab: Lab, name: str) -> list[str]:
    """Return a Node's OpenFlow groups as text, sorted; none when its ovs-vswitchd does not answer."""
    ovs = lab.ovs(name)
    try:
        text = ovs.ofctl("--no-names", "dump-groups", ovs.mgmt(BRIDGE))
    except LabError:
        return []
    return sorted(line.strip() for line in text.splitlines()[1:])


def has_standby(found: Iterable[str]) -> bool:
    """Tell whether any of a Node's groups (see `groups`) keeps some gateways on standby."""
    ids = (int(line.split("group_id=")[1].split(",", maxsplit=1)[0]) for line in found)
    return any(group_id >> 24 == GROUP_STANDBY.number for group_id in ids)


class Settled:
    """How a lab is when all is well: its BFD sessions and its groups, remembered to be compared with later.

    Make it when the lab works. `wait` returns when everything is so again: right after a session came back its
    interval is a second (RFC 5880, 6.8.3) and a fault would be noticed late; and what flap damping keeps out is
    not in the groups.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._names = [item.name for _, item in lab.topology.nodes()]
        wait_until(self._is_calm, "BFD everywhere, and nothing on standby", timeout=SETTLE_TIMEOUT, interval=0.2)
        self.ports = {name: {item.port for item in sessions(lab, name)} for name in self._names}
        self.groups = {name: groups(lab, name) for name in self._names}

    def _is_calm(self) -> bool:
        """Whether all is well and stays so: at first agents learn who answers BFD, and damping may hold some."""
        if not all(self._fast(name) for name in self._names):
            return False
        before = [groups(self._lab, name) for name in self._names]  # runs ovs-ofctl
        if any(map(has_standby, before)):
            return False
        moment = time.monotonic() + CALM
        wait_until(lambda: time.monotonic() >= moment, "a moment")
        return [groups(self._lab, name) for name in self._names] == before

    def _fast(self, name: str) -> bool:
        return all(
            session.up and session.forwarding and max(session.tx, session.rx) < 1000
            for session in sessions(self._lab, name)
        )

    def unsettled(self) -> list[str]:
        """Return the Nodes where something is not as it was."""
        return [name for name in self._names if not self._is_settled(name)]

    def _is_settled(self, name: str) -> bool:
        same = {session.port for session in sessions(self._lab, name)} == self.ports[name]
        return same and self._fast(name) and groups(self._lab, name) == self.groups[name]

    def wait(self, timeout: float = SETTLE_TIMEOUT, watch: Callable[[], object] = lambda: None) -> None:
        """Return when everything is as it was. Raises LabError naming the Nodes where it is not.

        `watch` is called again and again meanwhile.
        """
        waiting = list(self._names)

        def done() -> bool:
            watch()
            while waiting and self._is_settled(waiting[0]):
                waiting.pop(0)
            return not waiting and not self.unsettled()

        try:
            wait_until(done, "the lab to settle", timeout=timeout, interval=0.2)
        except LabError as error:
            raise LabError(f"{error}: {', '.join(self.unsettled())}") from None
