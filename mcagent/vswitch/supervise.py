"""Decides whether this Node needs an Open vSwitch of this container, and runs it until SIGTERM.

Only one instance runs on a Node: an existing Open vSwitch of the Node is used instead, and a lock orders the old
and the new container of an upgrade.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from enum import StrEnum

from mcagent.vswitch.daemons import Daemons
from mcagent.vswitch.tools import SwitchError, Tools

log = logging.getLogger(__name__)

NICENESS = -10  # of the daemons, as ovs-ctl(8) has them
_POLL = 0.1  # seconds between two checks of the daemons
_FOREIGN_POLL = 2.0  # seconds between two checks of the Node's own Open vSwitch
_DEVICES = ("ovs-system", "ovs-netdev")  # devices of a running vswitchd: of the kernel's datapath and of its own


class DeployPolicy(StrEnum):
    """What to do if the Node has an Open vSwitch already."""

    AUTO = "auto"  # use it
    ALWAYS = "always"  # refuse to start


class Supervisor:
    """Decides once between an Open vSwitch of its own and the Node's, then runs or watches it."""

    def __init__(self, tools: Tools, policy: DeployPolicy) -> None:
        self._tools, self._policy = tools, policy
        self._stop = threading.Event()
        self._marker = tools.run / "mcagent-runs"  # exists if our Open vSwitch ran since the Node started
        self._foreign_marker = tools.data / "another-was-found"

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises SwitchError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        self._tools.run.mkdir(parents=True, exist_ok=True)
        self._tools.data.mkdir(parents=True, exist_ok=True)
        with self._lock():
            if self._stop.is_set():
                return
            if self._is_foreign():
                self._watch_foreign()
            else:
                self._serve()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the Node's lock, which another container releases after its daemons have ended."""
        descriptor = os.open(
            self._tools.run / "mcagent-openvswitch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "r+") as file:
            announced = False
            while not self._stop.is_set():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not announced:
                        log.info("another mcagent container runs Open vSwitch here; waiting to take over")
                        announced = True
                    self._stop.wait(_POLL / 2)
            yield

    def _is_foreign(self) -> bool:
        """Return whether to use the Node's own Open vSwitch. Raises SwitchError if that is not allowed."""
        where = self._tools.socket
        if self._policy is DeployPolicy.ALWAYS:
            self._foreign_marker.unlink(missing_ok=True)
        if self._tools.answers():
            if self._policy is DeployPolicy.ALWAYS:
                raise SwitchError(
                    f"an Open vSwitch that is not ours answers at {where}: stop it, or set openvswitch.deploy=auto"
                )
            self._foreign_marker.touch()
            return True
        if not self._marker.exists() and (device := _present(_DEVICES)):
            raise SwitchError(
                f"this Node has an Open vSwitch (device {device}), but not at {where}: set openvswitch.directory "
                "to where its db.sock is (Antrea: /var/run/antrea/openvswitch). Two of them would take each "
                f"other's ports away. Where none runs any more, remove {device} (ovs-dpctl del-dp)"
            )
        return self._foreign_marker.exists()

    def _watch_foreign(self) -> None:
        """Log whether the Node's own Open vSwitch answers, until stopped."""
        answered: bool | None = None
        while not self._stop.is_set():
            if (now := self._tools.answers()) != answered:
                if now:
                    log.info("using the Node's own Open vSwitch at %s", self._tools.socket)
                else:
                    log.warning(
                        "the Open vSwitch that this Node had at %s does not answer: waiting for it. If it has "
                        "been removed for good, remove %s on the Node, or set openvswitch.deploy to always",
                        *(self._tools.socket, self._foreign_marker),
                    )
                answered = now
            self._stop.wait(_FOREIGN_POLL)

    def _serve(self) -> None:
        """Run the daemons until stopped."""
        with contextlib.suppress(PermissionError):
            os.nice(NICENESS - os.nice(0))
        self._warn_without_datapath()
        self._marker.touch()
        daemons = Daemons(self._tools, self._stop.is_set)
        try:
            daemons.start()
            log.info("Open vSwitch runs: %s", self._tools.socket)
            while not self._stop.wait(_POLL):
                daemons.restart_ended()
        finally:
            daemons.stop()
        log.info("Open vSwitch has exited; the kernel's datapath keeps what it has")

    def _warn_without_datapath(self) -> None:
        from mcagent.dataplane.facts import kernel_datapath_exists

        if not kernel_datapath_exists():
            log.warning(
                "this Node's kernel has no Open vSwitch datapath (module openvswitch; on Ubuntu it is in "
                "linux-modules-extra): traffic between clusters uses the userspace datapath, many times "
                "slower, and leaves only by devices that are ports of Open vSwitch. Load the module and "
                "restart this Pod"
            )


def _present(devices: tuple[str, ...]) -> str:
    names = {name for _, name in socket.if_nameindex()}
    return next((device for device in devices if device in names), "")
