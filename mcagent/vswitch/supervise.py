"""Whether this Node needs an Open vSwitch of ours, and running it until told to end.

One at a time: an Open vSwitch that is there already is used, never run beside; two of ours (the old and the new
container of an upgrade) hand over by a lock.
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
_LOOK = 0.1  # seconds between two looks at the daemons
_OTHERS = 2.0  # seconds between two looks at an Open vSwitch of somebody else
_DEVICES = ("ovs-system", "ovs-netdev")  # that a running vswitchd has, of the kernel's datapath and of its own


class Policy(StrEnum):
    """What to do where there is an Open vSwitch already."""

    AUTO = "auto"  # use it
    ALWAYS = "always"  # refuse: here should be none but ours


class Supervisor:
    """Decides once, and then keeps what it has decided."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools, self._policy = tools, policy
        self._stop = threading.Event()
        self._marker = tools.run / "mcagent-runs"  # since the Node has started, ours ran here
        self._found = tools.data / "another-was-found"

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises SwitchError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        self._tools.run.mkdir(parents=True, exist_ok=True)
        self._tools.data.mkdir(parents=True, exist_ok=True)
        with self._lock():
            if self._stop.is_set():
                return
            if self._is_anothers():
                self._use()
            else:
                self._serve()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the Node's lock; the container that has it gives it up when its daemons have ended."""
        descriptor = os.open(
            self._tools.run / "mcagent-openvswitch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "r+") as file:
            told = False
            while not self._stop.is_set():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        log.info(
                            "another container of ours runs this Node's Open vSwitch: this one takes over after it"
                        )
                        told = True
                    self._stop.wait(_LOOK / 2)
            yield

    def _is_anothers(self) -> bool:
        """Tell whether there is an Open vSwitch of somebody else. Raises SwitchError."""
        where = self._tools.socket
        if self._policy is Policy.ALWAYS:
            self._found.unlink(missing_ok=True)
        if self._tools.answers():
            if self._policy is Policy.ALWAYS:
                raise SwitchError(
                    f"an Open vSwitch that is not ours answers at {where}: stop it, or set openvswitch.deploy=auto"
                )
            self._found.touch()
            return True
        if not self._marker.exists() and (device := _present(_DEVICES)):
            raise SwitchError(
                f"this Node has an Open vSwitch (device {device}), but not at {where}: set openvswitch.directory "
                "to where its db.sock is (Antrea: /var/run/antrea/openvswitch). Two of them would take each "
                f"other's ports away. Where none runs any more, remove {device} (ovs-dpctl del-dp)"
            )
        return self._found.exists()

    def _use(self) -> None:
        """Watch an Open vSwitch of somebody else."""
        there: bool | None = None
        while not self._stop.is_set():
            if (now := self._tools.answers()) != there:
                if now:
                    log.info("this Node has an Open vSwitch at %s: it is used", self._tools.socket)
                else:
                    log.warning(
                        "the Open vSwitch that this Node had at %s does not answer: waiting for it. If it has "
                        "been removed for good, remove %s on the Node, or set openvswitch.deploy to always",
                        *(self._tools.socket, self._found),
                    )
                there = now
            self._stop.wait(_OTHERS)

    def _serve(self) -> None:
        """Run one of ours."""
        with contextlib.suppress(PermissionError):
            os.nice(NICENESS - os.nice(0))
        self._tell_datapath()
        self._marker.touch()
        daemons = Daemons(self._tools, self._stop.is_set)
        try:
            daemons.start()
            log.info("Open vSwitch runs: %s", self._tools.socket)
            while not self._stop.wait(_LOOK):
                daemons.look()
        finally:
            daemons.stop()
        log.info("Open vSwitch has exited; the kernel's datapath keeps what it has")

    def _tell_datapath(self) -> None:
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
