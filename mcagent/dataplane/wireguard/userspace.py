"""WireGuard in userspace: a wireguard-go process for each device, on a TUN device that outlives it.

Owns the process: starts it in the calling thread's network namespace, leaves it running when the agent ends, finds
it again by the record in the run directory, and restarts it (with growing pauses) when it died. The TUN device is
persistent, so addresses and routes stay without a process; packets are dropped meanwhile.
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
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.errors import BackendError

log = logging.getLogger(__name__)

BINARY = "wireguard-go"
TUN = Path("/dev/net/tun")
# linux/if_tun.h
TUNSETIFF, TUNSETPERSIST, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x400454CB, 0x0001, 0x1000
SOCKETS = Path("/var/run/wireguard")  # fixed in wireguard-go (ipc/uapi_unix.go)
READY = 5.0  # seconds from start to the first answer (measured: 8 to 105 ms)
END = 2.0  # seconds from SIGTERM to SIGKILL
DYING = 0.2  # seconds from the end of its sockets to that of the process
LIVED = 30.0  # seconds: a process that ran as long did not fail at start
PAUSES = (0.0, 0.0, 0.5, 2.0, 10.0, 30.0)  # seconds before a start, by the number of short runs before it

# Processes started by this process, which has to wait for them; they outlive the driver and this process.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


class WireGuardGo:
    """A WireGuard device of wireguard-go."""

    implementation = WireGuardImplementation.USERSPACE
    kind = "tun"

    def __init__(self, name: str, run_directory: Path) -> None:
        """`run_directory` is for the record of the process. Starts nothing yet."""
        self._name = name
        self._record = run_directory / f"wireguard-go.{name}.json"
        self._log = self._record.with_suffix(".log")
        self._began = -math.inf  # monotonic seconds: when its process was started last
        self._short = 0  # number of consecutive short runs
        self.restarts = 0  # processes started in place of one that died

    def available(self) -> bool:
        """Return whether there are the program and /dev/net/tun."""
        return shutil.which(BINARY) is not None and TUN.exists()

    def create(self) -> None:
        """Create the TUN device if there is none, and start a process if none runs."""
        if read_link(self._name) is None:
            self._stop()  # without its TUN device the process ends soon
            self._create_tun()
        if self.process() is None:
            self._start()

    def process(self) -> int | None:
        """Return the PID of the device's process; None: it does not run."""
        pid = self._recorded()
        child = _CHILDREN.get(pid)
        if child is not None and child.poll() is not None:
            del _CHILDREN[pid]
        with contextlib.suppress(OSError):  # a process that has ended has no arguments, another one has others
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0-f\0{self._name}\0".encode()):
                return pid
        return None

    def read(self) -> RawDevice | None:
        """Read the device from its process; None: it does not run."""
        try:
            return uapi.parse_device(self._exchange(uapi.GET))
        except ValueError as error:
            raise self._error("read", f"cannot be parsed: {error}") from None
        except BackendError:
            if self.process() is None:
                return None
            raise

    def write(self, change: DeviceChange) -> None:
        """Change the device. After an error a part of the change may be done."""
        self._exchange(uapi.change_text(change))

    def remove(self) -> None:
        """End the process and delete the TUN device."""
        self._stop()
        change_link("remove", self._name, [links.delete_link(self._name)])

    # --- the process ------------------------------------------------------------------------------------

    def _start(self) -> None:
        now = time.monotonic()
        if self._record.exists():  # an earlier process ended by itself
            short = self._short + 1 if now - self._began < LIVED else 0
            pause = self._began + PAUSES[min(short, len(PAUSES) - 1)] - now
            if pause > 0:
                reason = f"wireguard-go keeps exiting{self._last_error()}; next attempt in {pause:.1f} s"
                raise self._error("start", reason)
            self._short = short
            self.restarts += 1
            log.warning("wireguard-go of %s exited%s; restarting it", self._name, self._last_error())
        self._began = now
        previous = self._recorded()
        if previous:
            _ended(previous)  # wait until it releases the TUN device
        try:
            self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log.open("wb") as output:
                child = subprocess.Popen(
                    [BINARY, "-f", self._name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # not in the foreground group of the agent's terminal
                    cwd="/",
                    env={"PATH": os.environ.get("PATH", os.defpath), "LOG_LEVEL": "error"},
                )
            try:
                record = self._record.with_suffix(".new")
                record.write_text(json.dumps({"pid": child.pid}))
                record.rename(self._record)
            except OSError:
                # Without its record it would not be used, and would occupy the TUN device for good.
                child.kill()
                child.wait()
                raise
            _CHILDREN[child.pid] = child
        except OSError as error:
            raise self._error("start", f"{error.filename or BINARY}: {error.strerror}") from None
        self._wait_ready(child)
        log.info("wireguard-go of %s runs as process %d", self._name, child.pid)

    def _recorded(self) -> int:
        """Return the PID of the process that was started last; 0: unknown."""
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
        raise self._error("start", f"wireguard-go exited with status {child.returncode}{self._last_error()}")

    def _stop(self) -> None:
        """End the process, if there is one; it does not count as a failure."""
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

    def _create_tun(self) -> None:
        """Create a persistent TUN device; wireguard-go sets its own flags when it attaches."""
        flags = struct.pack("16sH14x", self._name.encode(), IFF_TUN | IFF_NO_PI)
        try:
            with TUN.open("r+b", buffering=0) as device:
                fcntl.ioctl(device, TUNSETIFF, flags)
                fcntl.ioctl(device, TUNSETPERSIST, 1)
        except OSError as error:
            raise self._error("create", f"{TUN}: {error.strerror}") from None

    def _last_error(self) -> str:
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
    """Provide a descriptor that is readable after the process has ended. Raises ProcessLookupError."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(pid: int) -> bool:
    """Wait up to DYING seconds for the end of a process, whose sockets close first; return whether it ended."""
    try:
        with _pidfd(pid) as descriptor:
            return bool(select.select([descriptor], [], [], DYING)[0])
    except OSError:  # it has ended, or the PID is a thread's
        return True
