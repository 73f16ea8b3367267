"""WireGuard in userspace: a wireguard-go process for each device, on a TUN device that outlives it.

Owns the process: started in the calling thread's network namespace, left alone when the agent ends, found again
by the record in the run directory, started anew (with pauses that grow) when it died. The TUN device is
persistent, so addresses and routes stay while there is no process; nothing passes meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import select
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from mcagent.dataplane.netlink import links
from mcagent.dataplane.wireguard import uapi
from mcagent.dataplane.wireguard.device import change_link, read_link
from mcagent.dataplane.wireguard.driver import DeviceChange, RawDevice, wireguard_error
from mcagent.model.errors import BackendError
from mcagent.model.wireguard import WireGuardImplementation

log = logging.getLogger(__name__)

BINARY = "wireguard-go"
TUN = Path("/dev/net/tun")
# linux/if_tun.h
TUNSETIFF, TUNSETPERSIST, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x400454CB, 0x0001, 0x1000
SOCKETS = Path("/var/run/wireguard")  # fixed in wireguard-go (ipc/uapi_unix.go)
READY = 5.0  # seconds from start to the first answer: 8 to 105 ms seen
END = 2.0  # seconds from SIGTERM to SIGKILL
DYING = 0.2  # seconds: between the end of its sockets and that of the process
LIVED = 30.0  # seconds: a process that ran as long did not die of its start
PAUSES = (0.0, 0.0, 0.5, 2.0, 10.0, 30.0)  # seconds before a start, by the number of short lives before it

# Started by this process and to be waited for by it, whatever becomes of the driver: they outlive both.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


class WireGuardGo:
    """A WireGuard device of wireguard-go."""

    implementation = WireGuardImplementation.USERSPACE
    kind = "tun"

    def __init__(self, name: str, run_directory: Path) -> None:
        """Remember the device's name, and where its record is kept; nothing is run yet."""
        self._name = name
        self._record = run_directory / f"wireguard-go.{name}.json"
        self._log = self._record.with_suffix(".log")
        self._began = -math.inf  # monotonic seconds: when its process was started last
        self._short = 0  # how often in a row it ended soon
        self.restarts = 0  # processes started in place of one that died

    def available(self) -> bool:
        """Tell whether there is a binary, and a TUN device to make devices with."""
        return shutil.which(BINARY) is not None and TUN.exists()

    def create(self) -> None:
        """Make the TUN device if there is none, and start a process if none runs."""
        if read_link(self._name) is None:
            self._stop()  # it lost its TUN device, and is about to end by itself
            self._make_tun()
        if self.process() is None:
            self._start()

    def process(self) -> int | None:
        """Return the number of the device's process, or None if there is none that lives."""
        pid = self._recorded()
        child = _CHILDREN.get(pid)
        if child is not None and child.poll() is not None:
            del _CHILDREN[pid]
        with contextlib.suppress(OSError):  # one that has ended has no arguments, another one has others
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0-f\0{self._name}\0".encode()):
                return pid
        return None

    def read(self) -> RawDevice | None:
        """Return what the process says; None where none lives."""
        try:
            return uapi.parse_device(self._exchange(uapi.GET))
        except ValueError as error:
            raise self._error("read", f"cannot be parsed: {error}") from None
        except BackendError:
            if self.process() is None:
                return None
            raise

    def write(self, change: DeviceChange) -> None:
        """Change the device. An error may leave a part of the change done."""
        self._exchange(uapi.change_text(change))

    def remove(self) -> None:
        """End the process and take the TUN device away."""
        self._stop()
        change_link("remove", self._name, [links.delete_link(self._name)])

    # --- the process ------------------------------------------------------------------------------------

    def _start(self) -> None:
        now = time.monotonic()
        if self._record.exists():  # there was one, and it did not end by our hand
            short = self._short + 1 if now - self._began < LIVED else 0
            left = self._began + PAUSES[min(short, len(PAUSES) - 1)] - now
            if left > 0:
                reason = f"wireguard-go keeps exiting{self._last_words()}; next attempt in {left:.1f} s"
                raise self._error("start", reason)
            self._short = short
            self.restarts += 1
            log.warning("wireguard-go of %s exited%s; restarting it", self._name, self._last_words())
        self._began = now
        before = self._recorded()
        if before:
            _ended(before)  # dead already, it has to let go of the TUN device
        try:
            self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log.open("wb") as output:
                child = subprocess.Popen(
                    [BINARY, "-f", self._name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # signals to the agent's terminal are not meant for it
                    cwd="/",
                    env={"PATH": os.environ.get("PATH", os.defpath), "LOG_LEVEL": "error"},
                )
            _CHILDREN[child.pid] = child
            record = self._record.with_suffix(".new")
            record.write_text(json.dumps({"pid": child.pid}))
            record.rename(self._record)
        except OSError as error:
            raise self._error("start", f"{error.filename or BINARY}: {error.strerror}") from None
        self._wait_ready(child)
        log.info("wireguard-go of %s runs as process %d", self._name, child.pid)

    def _recorded(self) -> int:
        """Return the number of the process that was started last; 0 if none is known."""
        try:
            return int(json.loads(self._record.read_bytes())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _wait_ready(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY
        while child.poll() is None:
            with contextlib.suppress(BackendError):
                self._exchange(uapi.GET)
                return
            if time.monotonic() > deadline:
                raise self._error("start", f"wireguard-go did not answer within {READY:g} s")
            time.sleep(0.003)
        raise self._error("start", f"wireguard-go exited with status {child.returncode}{self._last_words()}")

    def _stop(self) -> None:
        """End the process, if there is one, and forget it: its end counts for nothing."""
        pid = self.process()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError), _pidfd(pid) as descriptor:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    signal.pidfd_send_signal(descriptor, number)
                    if select.select([descriptor], [], [], END)[0]:
                        break
            child = _CHILDREN.pop(pid, None)
            if child is not None:
                child.wait()
        self._record.unlink(missing_ok=True)
        self._began, self._short = -math.inf, 0

    def _exchange(self, request: str) -> str:
        pid = self.process()
        if pid is None:
            raise self._error("reach", "wireguard-go is not running")
        try:
            return uapi.exchange(SOCKETS / f"{self._name}.sock", request, pid=pid)
        except OSError as error:
            ended = isinstance(error, ConnectionError) and _ended(pid)
            reason = "wireguard-go has just exited" if ended else f"wireguard-go's socket: {error}"
            raise self._error("reach", reason) from None

    def _make_tun(self) -> None:
        """Make a TUN device that stays without a process; wireguard-go sets its own flags when it attaches."""
        flags = struct.pack("16sH14x", self._name.encode(), IFF_TUN | IFF_NO_PI)
        try:
            with TUN.open("r+b", buffering=0) as device:
                fcntl.ioctl(device, TUNSETIFF, flags)
                fcntl.ioctl(device, TUNSETPERSIST, 1)
        except OSError as error:
            raise self._error("create", f"{TUN}: {error.strerror}") from None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            if errors:
                return f" ({errors[-1][-200:]})"
        return ""

    def _error(self, operation: str, reason: str) -> BackendError:
        return wireguard_error(operation, f"device {self._name}", reason)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    """Lend a descriptor that is readable once the process has ended. ProcessLookupError where it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(pid: int) -> bool:
    """Tell whether a process ends within a moment: its sockets close before it is gone."""
    try:
        with _pidfd(pid) as descriptor:
            return bool(select.select([descriptor], [], [], DYING)[0])
    except OSError:  # it is gone, or its number is a thread's
        return True
