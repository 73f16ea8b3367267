"""Changes a device's own key under traffic: the peers learn of it, and they begin the handshakes.

Owns a thread for the few moments that a change takes, and meanwhile an nft table of its own.

Two handshakes begun from both sides at the same moment cancel each other in WireGuard, and are tried again only
after 5 s. With a new key there is always something to send on both sides, so exactly one may begin. It is the
peer: it has to move our networks to the new key first (`wireguard_handover`), and what we sent before that would
be dropped. So from before the change until hands were shaken, our device's initiations are dropped on their way
out.
The peers learn of the change by a notice, which is repeated.

What is to be sent meanwhile waits (`wireguard_hold`), or where that cannot be had, in WireGuard itself, which
keeps up to 128 packets for each peer.

Elements of the nft sets end by themselves: an agent that dies here leaves nothing that lasts.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from mcagent.dataplane.nft.process import run_nft
from mcagent.dataplane.wireguard_driver import DeviceChange, Driver, Endpoint, PeerChange, RawDevice, RawPeer
from mcagent.dataplane.wireguard_hold import QUEUE, Hold
from mcagent.dataplane.wireguard_noise import INITIATION, INITIATION_LENGTH, notice
from mcagent.dataplane.wireguard_peers import SESSION
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, internet_checksum
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

TABLE = "mcagent-rekey"  # of family inet
EVERY = 0.25  # seconds between notices to a peer that has not shaken hands
LOOK = 0.01  # seconds between looks at the device, at least
SETTLE = 0.1  # seconds from the last packet under the old key to the change
LAST = 8.0  # seconds after which peers that do not answer are left to WireGuard
KEEP = 12  # seconds after which nft forgets, whatever becomes of the agent
_UDP_HEADER = 8  # bytes


class Rekey:
    """Changes keys of devices, one at a time."""

    def __init__(self) -> None:
        """Nothing is opened before the first change."""
        self._thread: threading.Thread | None = None
        self._table = False
        self.changed: dict[str, float] = {}  # when each device got its key: seconds since the epoch

    def change(self, name: str, driver: Driver, raw: RawDevice, change: DeviceChange) -> None:
        """Write a change with another private key to the device, and let its peers know. Raises BackendError.

        Returns when it is written; a thread goes on until all peers with a session have shaken hands.
        """
        assert change.private_key is not None
        now = time.time()
        live = {
            key: (peer.endpoint, peer.last_handshake)
            for key, peer in raw.peers.items()
            if peer.endpoint is not None and 0 <= now - peer.last_handshake < SESSION
        }
        port = change.listen_port or raw.listen_port
        outer = [endpoint[0] for endpoint, _ in live.values()]
        hold = self._hush(port, outer, [one for key in live for one in _hosts(raw.peers[key])])
        if hold is not None:
            time.sleep(SETTLE)  # what was sent before is taken in by the peers
        try:
            driver.write(name, change)
        except BackendError:
            _end_hold(hold)
            raise
        self.changed[name] = time.time()
        work = _Notices(name, driver, change, raw, live=live, hold=hold)
        self._thread = Supervised(self._follow, args=(work,), name="wireguard-rekey")
        self._thread.start()

    def let(self, address: Address) -> None:
        """Let the device's own initiations to that address out again."""
        if self._table:
            _nft(f"delete element inet {TABLE} ip{address.version} {{ {address} }}\n")

    def end(self) -> None:
        """Take the nft table away, if there is one."""
        self._table = False
        _nft(f"add table inet {TABLE}\ndelete table inet {TABLE}\n")

    def _hush(self, port: int, outer: Sequence[Address], inner: Sequence[Address]) -> Hold | None:
        """From now on drop the device's initiations to `outer`, and hold back packets to `inner` if possible."""
        hold = _open_hold() if inner else None
        self._table = _nft(_rules(port, outer, inner if hold is not None else ()))
        if hold is not None and not self._table:  # a kernel without nft's "queue"
            hold.close()
            hold = None
            self._table = _nft(_rules(port, outer, ()))
        return hold

    def _follow(self, work: _Notices) -> None:
        work.run()
        if self._thread is threading.current_thread():  # no later change has begun
            self.end()
            work.leave()


def _rules(port: int, outer: Sequence[Address], inner: Sequence[Address]) -> str:
    """Return the nft table: which initiations are dropped, and what is held back."""
    lines = [f"add table inet {TABLE}", f"delete table inet {TABLE}", f"add table inet {TABLE}"]
    lines.append(f"add chain inet {TABLE} out {{ type filter hook output priority 0; }}")
    for version, kind in ((4, "ip"), (6, "ip6")):
        where = f"inet {TABLE} ip{version}"
        elements = _elements([one for one in outer if one.version == version])
        lines.append(f"add set {where} {{ type ipv{version}_addr; flags timeout; {elements} }}")
        match = f"udp sport {port} udp length {_UDP_HEADER + INITIATION_LENGTH}"
        begins = f"@th,{8 * _UDP_HEADER},32 {int.from_bytes(INITIATION, 'big')}"
        lines.append(f"add rule inet {TABLE} out {kind} daddr @ip{version} {match} {begins} drop")
    if inner:
        lines += [
            f"add set inet {TABLE} held {{ type ipv4_addr; flags timeout; {_elements(inner)} }}",
            f"add chain inet {TABLE} hold {{ type filter hook postrouting priority 300; }}",
            f"add rule inet {TABLE} hold ip daddr @held queue num {QUEUE} bypass",
        ]
    return "\n".join(lines) + "\n"


def _elements(addresses: Iterable[Address]) -> str:
    found = ", ".join(f"{one} timeout {KEEP}s" for one in sorted(set(addresses)))
    return f"elements = {{ {found} }};" if found else ""


def _hosts(peer: RawPeer) -> list[Address]:
    """Return the addresses of tunnels' ends behind a peer."""
    return [one.network_address for one in peer.allowed_ips if one.version == 4 and one.prefixlen == 32]


def _open_hold() -> Hold | None:
    try:
        return Hold()
    except OSError as error:
        log.debug("%s", error)
        return None


def _end_hold(hold: Hold | None) -> None:
    """Let nothing into the queue any more, and everything out of it."""
    if hold is None:
        return
    flush = Supervised(_nft, args=(f"flush set inet {TABLE} held\n",), name="wireguard-flush")
    flush.start()
    while flush.is_alive():  # on a busy machine it takes a while, and packets keep coming
        hold.release_all()
        flush.join(LOOK)
    hold.close()


class _Notices:
    """Lets peers know of a new key until they have shaken hands under it."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        change: DeviceChange,
        raw: RawDevice,
        *,
        live: Mapping[str, tuple[Endpoint, float]],
        hold: Hold | None,
    ) -> None:
        assert change.private_key is not None
        self._name, self._driver, self._private = name, driver, change.private_key
        self._port = change.listen_port or raw.listen_port
        self._mark = raw.fwmark if change.fwmark is None else change.fwmark
        self._keepalives = {key: peer.keepalive for key, peer in raw.peers.items() if peer.keepalive}
        self._waiting = dict(live)
        self._held = {key: _hosts(raw.peers[key]) for key in live}
        self._hold = hold
        self._refused = False

    def run(self) -> None:
        """Send and look, until nobody is waited for or the time is over; nothing is held back afterwards."""
        try:
            self._run()
        finally:
            _end_hold(self._hold)

    def _run(self) -> None:
        began = time.monotonic()
        again = 0.0
        while self._waiting and (now := time.monotonic()) < began + LAST:
            if now >= again:
                again = now + EVERY
                for key, (endpoint, _) in self._waiting.items():
                    self._send(key, endpoint)
            before = time.monotonic()
            took = 0.0
            with contextlib.suppress(BackendError):  # the device may go meanwhile
                peers = self._driver.read(self._name).peers
                took = time.monotonic() - before
                done = [key for key, one in self._waiting.items() if _shaken(peers.get(key), one[1])]
                for key in done:
                    del self._waiting[key]
                self._release([address for key in done for address in self._held[key]])
            time.sleep(max(LOOK, 4 * took))  # with many peers a look takes long

    def _release(self, addresses: Sequence[Address]) -> None:
        """Hold nothing back for these addresses any more; take in what has come for others."""
        if self._hold is None:
            return
        self._hold.release(addresses)
        if addresses and self._waiting:  # others may take long, and the queue is slower than the kernel
            text = f"delete element inet {TABLE} held {{ {', '.join(map(str, addresses))} }}\n"
            Supervised(_nft, args=(text,), name="wireguard-release").start()
        self._hold.look()

    def leave(self) -> None:
        """Have WireGuard itself begin with the rest: turned on, a keepalive is sent at once."""
        owed = [key for key in self._waiting if key in self._keepalives]
        changes = [PeerChange(public_key=key, keepalive=v) for key in owed for v in (0, self._keepalives[key])]
        if changes:
            with contextlib.suppress(BackendError):
                self._driver.write(self._name, DeviceChange(peers=changes))

    def _send(self, key: str, endpoint: Endpoint) -> None:
        """Send a notice from the device's own port: what lets its packets through lets this one through."""
        address, port = endpoint
        payload = notice(self._private, base64.b64decode(key))
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            with socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_UDP) as sender:
                if self._mark:
                    sender.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, self._mark)
                sender.connect((str(address), 0))
                source = socket.inet_pton(family, sender.getsockname()[0])
                sender.send(_datagram(source, address.packed, self._port, port, payload))
        except OSError as error:
            if not self._refused:
                log.warning("peers learn of this Node's new WireGuard key only when it is published: %s", error)
            self._refused = True


def _shaken(peer: RawPeer | None, before: float) -> bool:
    """Tell whether the peer has shaken hands since; one that is gone (handed over itself) is not waited for."""
    return peer is None or peer.last_handshake != before


def _datagram(source: bytes, destination: bytes, port: int, to: int, payload: bytes) -> bytes:
    """Return a UDP datagram with its checksum (RFC 768)."""
    length = _UDP_HEADER + len(payload)
    pseudo = source + destination + struct.pack(">II", length, socket.IPPROTO_UDP)
    head = struct.pack(">HHHH", port, to, length, 0)
    check = internet_checksum(pseudo + head + payload) or 0xFFFF  # 0 would mean that there is none
    return head[:6] + check.to_bytes(2) + payload


def _nft(text: str) -> bool:
    """Run it; tell whether it was done."""
    try:
        code, _, errors = run_nft(["-f", "-"], text)
    except OSError as error:
        code, errors = 1, str(error)
    if code:
        log.debug("nft: %s", errors)
    return not code
