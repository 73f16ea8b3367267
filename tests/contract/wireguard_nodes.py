"""Namespaces with a WireGuard backend each, for the contract tests."""

from __future__ import annotations

import base64
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.dataplane.wireguard.backend import WireGuardBackend
from mcagent.dataplane.wireguard.keys import KeyStore
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import (
    MAX_DEVICES,
    WireGuardDevice,
    WireGuardImplementation,
    WireGuardPeer,
    device_names,
)
from mcagent.model.net import host_network, parse_address, parse_network
from tests.contract.inside import Inside, make

PORT = 51821
MTU = 1420
_NUMBERS = itertools.count(1)


def missing(implementation: WireGuardImplementation) -> str:
    """Return why an implementation cannot be tested here, or ""."""
    if implementation is WireGuardImplementation.USERSPACE:
        return "" if shutil.which("wireguard-go") and Path("/dev/net/tun").exists() else "no wireguard-go or TUN"
    name = f"mct{os.getpid()}-wg"
    netns.create(name)
    try:
        done = netns.execute(name, ["ip", "link", "add", "wg0", "type", "wireguard"], check=False)
    finally:
        netns.delete(name)
    return "" if done.returncode == 0 else "this kernel has no WireGuard: see tests/kernel/lane.py"


class WireGuardNode:
    """A namespace with an underlay address, keys and a backend."""

    def __init__(
        self,
        number: int,
        namespace: str,
        directory: Path,
        implementation: WireGuardImplementation,
        *,
        underlay: str = "192.0.2.",
        inner: str = "10.96.0.",
    ) -> None:
        self.number = number
        self.namespace = namespace
        self.directory = directory
        self.implementation = implementation
        self.store = KeyStore(directory / "keys.json")
        # wireguard-go's sockets are in one directory for all namespaces, so names must differ
        self.device = f"mcwg{os.getpid() % 100_000}-{next(_NUMBERS)}"
        self.devices = device_names(self.device, MAX_DEVICES)
        self.underlay = parse_address(f"{underlay}{number}")
        self.inner = parse_address(f"{inner}{number}")
        self.backend = self.new_backend()

    def new_backend(self) -> Inside:
        """Return another backend of the same devices, as an agent that has started again has it."""
        backend = WireGuardBackend(
            devices=self.devices,
            keys=self.store,
            run_directory=self.directory / "run",
            implementation=self.implementation,
        )
        return Inside(self.namespace, backend)

    @property
    def wireguard(self) -> WireGuardBackend:
        """The backend itself."""
        assert isinstance(self.backend.backend, WireGuardBackend)
        return self.backend.backend

    def value(self, index: int = 0, /, **fields: object) -> WireGuardDevice:
        """Return a device as core would ask for it."""
        device = WireGuardDevice(
            name=self.devices[index],
            listen_port=PORT + index,
            mtu=MTU,
            public_key=self.store.ensure().current.public,
            addresses=(self.inner,),
            implementation=self.implementation,
            loose_source_check=index > 0,
        )
        return replace(device, **fields)  # type: ignore[arg-type]

    def peer_for(self, other: WireGuardNode, index: int = 0, /, **fields: object) -> WireGuardPeer:
        """Return this Node as a peer of a device of another one."""
        keys = self.store.ensure()
        peer = WireGuardPeer(
            device=other.devices[index],
            public_key=keys.current.public,
            endpoint=(self.underlay, PORT + index),
            allowed_ips=(host_network(self.inner),),
            keepalive=5,
            successor=keys.next.public if keys.next is not None else "",
        )
        return replace(peer, **fields)  # type: ignore[arg-type]

    def make(self, *peers: WireGuardPeer, **more: object) -> None:
        """Bring device and peers to what they should be."""
        make(self.backend, [self.value(**more), *peers])

    def wg(self, *words: str) -> str:
        """Run wg(8) on the device."""
        if self.implementation is WireGuardImplementation.USERSPACE:
            return netns.run(["wg", words[0], self.device, *words[1:]]).stdout
        return netns.execute(self.namespace, ["wg", words[0], self.device, *words[1:]]).stdout

    def start_ping(self, other: WireGuardNode, *, count: int, interval: float = 0.002) -> Ping:
        """Begin to ping the other's address inside the tunnel."""
        return Ping(self.namespace, str(other.inner), count=count, interval=interval)

    def close(self) -> None:
        """Take everything away, the wireguard-go process too."""
        make(self.backend, [])
        self.backend.close()


class Ping:
    """A ping(8) under way."""

    def __init__(self, namespace: str, target: str, *, count: int, interval: float) -> None:
        command = ["ping", "-q", "-n", "-i", f"{interval}", "-c", f"{count}", "-W", "2", target]
        self._process = subprocess.Popen(
            netns.command(namespace, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def running(self) -> bool:
        """Tell whether it is still sending."""
        return self._process.poll() is None

    def lost(self) -> int:
        """Wait for the end and return how many got no answer."""
        output, _ = self._process.communicate(timeout=60)
        match = re.search(r"(\d+) packets transmitted, (\d+) received", output)
        assert match is not None, output
        return int(match[1]) - int(match[2])


def random_key() -> str:
    """Return some public key that nobody has."""
    return base64.b64encode(os.urandom(32)).decode()


def connect(nodes: Sequence[WireGuardNode]) -> None:
    """Join the Nodes' underlay addresses by a bridge in the first one's namespace."""
    first = nodes[0].namespace
    netns.ip(first, "link", "add", "underlay", "type", "bridge")
    netns.ip(first, "link", "set", "underlay", "up")
    for node in nodes:
        if node is nodes[0]:
            _give(node, "underlay")
            continue
        netns.add_veth(f"to{node.number}", first, "uplink", node.namespace)
        netns.ip(first, "link", "set", f"to{node.number}", "master", "underlay")
        _give(node, "uplink")


def _give(node: WireGuardNode, device: str) -> None:
    length, more = (24, ()) if node.underlay.version == 4 else (64, ("nodad",))  # an IPv6 address is there at once
    netns.ip(node.namespace, "address", "add", f"{node.underlay}/{length}", "dev", device, *more)


def route(node: WireGuardNode, other: WireGuardNode) -> None:
    """Lead the other's inner address into the device."""
    netns.ip(node.namespace, "route", "replace", f"{other.inner}/32", "dev", node.device, "src", str(node.inner))


@contextmanager
def two_nodes(
    directory: Path,
    implementation: WireGuardImplementation,
    *,
    underlay: str = "192.0.2.",
    inner: str = "10.96.0.",
) -> Iterator[tuple[WireGuardNode, WireGuardNode]]:
    """Give two Nodes in namespaces of their own, which know nothing of each other yet."""
    nodes = []
    for number in (1, 2):
        namespace = f"mct{os.getpid()}-w{number}"
        netns.create(namespace)
        own = directory / str(number)
        own.mkdir()
        nodes.append(WireGuardNode(number, namespace, own, implementation, underlay=underlay, inner=inner))
    one, two = nodes
    try:
        yield one, two
    finally:
        for node in nodes:
            node.close()
            netns.delete(node.namespace)


def meet(one: WireGuardNode, two: WireGuardNode) -> None:
    """Make two Nodes each other's peer, and return when they reach each other through their devices."""
    connect((one, two))
    for node, other in ((one, two), (two, one)):
        node.make(other.peer_for(node))
        route(node, other)
    wait_until(lambda: one.start_ping(two, count=1).lost() == 0, "the first answer")


def resources(node: WireGuardNode, *peers: WireGuardPeer) -> list[Resource]:
    """Return device and peers."""
    return [node.value(), *peers]


KEYS = [random_key() for _ in range(5)]


def peer(node: WireGuardNode, number: int, **fields: object) -> WireGuardPeer:
    """Return a peer that is nowhere."""
    peer = WireGuardPeer(
        device=node.device,
        public_key=KEYS[number],
        endpoint=(parse_address(f"198.51.100.{number + 1}"), PORT),
        allowed_ips=(parse_network(f"10.{100 + number}.0.0/32")[0],),
        keepalive=5,
    )
    return replace(peer, **fields)  # type: ignore[arg-type]
