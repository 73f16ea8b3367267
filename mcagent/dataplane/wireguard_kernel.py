"""WireGuard in the kernel: devices by rtnetlink, keys and peers by the generic netlink family."""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections.abc import Iterator

from mcagent.dataplane import wgmsg
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.wireguard_driver import DeviceChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard_link import change_link
from mcagent.model.errors import BackendError
from mcagent.model.resources import Backend
from mcagent.model.wireguard import WireGuardImplementation

AGAIN = 60.0  # seconds between questions to a kernel that has none: each has it look for a module
KIND = "wireguard"  # IFLA_INFO_KIND


class KernelDriver:
    """WireGuard devices of the kernel, in the calling thread's network namespace."""

    implementation = WireGuardImplementation.KERNEL

    def __init__(self) -> None:
        """Open nothing yet."""
        self._family = 0  # its number, known once it was found
        self._asked = -math.inf  # when (monotonic seconds)

    def available(self) -> bool:
        """Tell whether the kernel has WireGuard; asking makes it load the module where there is one."""
        if not self._family and time.monotonic() - self._asked > AGAIN:
            with self._socket() as socket:
                answer = socket.get(wgmsg.GENL_ID_CTRL, wgmsg.family_payload())
            self._asked = time.monotonic()
            if not isinstance(answer, Refusal):
                self._family = wgmsg.parse_family(answer)
            elif answer.errno != errno.ENOENT:
                raise wireguard_error("find", "the kernel's WireGuard", str(answer))
        return bool(self._family)

    def create(self, name: str) -> None:
        """Make the device."""
        change_link("add", frozenset({errno.EEXIST}), ifname=name, kind=KIND)

    def running(self, name: str) -> bool:  # noqa: ARG002
        """A device of the kernel always is."""
        return True

    def read(self, name: str) -> RawDevice:
        """Return what the device says."""
        return wgmsg.parse_device(self._dump(name))

    def private_key(self, name: str) -> bytes | None:
        """Return the device's private key."""
        return wgmsg.parse_private_key(self._dump(name))

    def write(self, name: str, change: DeviceChange) -> None:
        """Change the device, in one message where it fits."""
        family = self._number()
        with self._socket() as socket:
            for payload in wgmsg.set_payloads(name, change):
                refusal = socket.request([Request(family, 0, payload)])[0]
                if refusal is not None:
                    raise wireguard_error("change", f"device {name}", _reason(refusal, change))

    def remove(self, name: str) -> None:
        """Take the device away."""
        change_link("del", frozenset({errno.ENODEV}), ifname=name)

    def _dump(self, name: str) -> list[bytes]:
        family = self._number()
        with self._socket() as socket:
            return socket.dump(family, wgmsg.get_payload(name))

    def _number(self) -> int:
        if not self.available():
            raise wireguard_error("find", "the kernel's WireGuard", "this kernel has none")
        return self._family

    @contextlib.contextmanager
    def _socket(self) -> Iterator[NetlinkSocket]:
        socket = None
        try:
            socket = NetlinkSocket(wgmsg.NETLINK_GENERIC)
            yield socket
        except BackendError as error:
            if error.backend == Backend.WIREGUARD:
                raise
            raise wireguard_error(error.operation, error.obj, error.reason) from None
        finally:
            if socket is not None:
                socket.close()


def _reason(refusal: Refusal, change: DeviceChange) -> str:
    if refusal.errno == errno.EADDRINUSE and change.listen_port is not None:
        return f"UDP port {change.listen_port} is in use by somebody else"
    return str(refusal)
