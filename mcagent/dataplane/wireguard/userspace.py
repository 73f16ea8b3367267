"""WireGuard in userspace: a wireguard-go process for each device, on a TUN device that outlives it.

Owns the process: started in the calling thread's network namespace, left alone when the agent ends, found again
by the record in the run directory, started anew (with pauses that grow) when it died. The TUN device is
persistent, so addresses and routes stay while there is no process; nothing passes meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import select
import shutil
import signal
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from mcagent.dataplane.wireguard import uapi
from mcagent.dataplane.wireguard.driver import DeviceChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard.link import change_link, read_link
from mcagent.model.errors import BackendError
from mcagent.model.wireguard import WireGuardImplementation

log = logging.getLogger(__name__)

KIND = "tun"  # IFLA_INFO_KIND
TUN = Path("/dev/net/tun")
# linux/if_tun.h
TUNSETIFF, TUNSETPERSIST, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x400454CB, 0x0001, 0x1000
SOCKETS = "wireguard"  # directory in /var/run, fixed in wireguard-go (ipc/uapi_unix.go)
READY = 5.0  # seconds from start to the first answer: 8 to 105 ms seen
END = 2.0  # seconds from SIGTERM to SIGKILL
DYING = 0.2  # seconds: between the end of its sockets and that of the process
LIVED = 30.0  # seconds: a process that ran as long did not die of its start
PAUSES = (0.0, 0.0, 0.5, 2.0, 10.0, 30.0)  # seconds before a start, by the number of short lives before it

# Started by this process and to be waited for by it, whatever becomes of the driver: they outlive both.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(slots=True)
class _Starts:
    """When the process of a device was started last, and how often in a row it ended soon."""

    at: float = -1e9  # monotonic seconds
    short: int = 0


class WireGuardGo:
    """WireGuard devices of wireguard-go."""

    implementation = WireGuardImplementation.USERSPACE

    def __init__(self, run_directory: Path, binary: str = "wireguard-go") -> None:
        """Remember where records are kept and what to run; nothing is run yet."""
        self._directory = run_directory
        self._binary = binary
        self._starts: dict[str, _Starts] = {}
        self.restarts = 0  # processes started in place of one that died

    def available(self) -> bool:
        """Tell whether there is a binary, and a TUN device to make devices with."""
        return shutil.which(self._binary) is not None and TUN.exists()

    def create(self, name: str) -> None:
        """Make the TUN device if there is none, and start a process if none runs."""
        if read_link(name) is None:
            self._stop(name)  # it lost its TUN device, and is about to end by itself
            self._make_tun(name)
        if not self.running(name):
            self._start(name)

    def running(self, name: str) -> bool:
        """Tell whether the device's process lives."""
        return self.process(name) is not None

    def process(self, name: str) -> int | None:
        """Return the number of the device's process, or None if there is none that lives."""
        pid, started = self._recorded(name)
        child = _CHILDREN.get(pid)
        if child is not None and child.poll() is not None:
            del _CHILDREN[pid]
        return pid if _start_time(pid) == (started, True) else None

    def read(self, name: str) -> RawDevice:
        """Return what the process says."""
        try:
            return uapi.parse_device(self._exchange(name, uapi.GET))
        except ValueError as error:
            raise _error("read", name, f"cannot be understood: {error}") from None

    def write(self, name: str, change: DeviceChange) -> None:
        """Change the device. An error may leave a part of the change done."""
        self._exchange(name, uapi.change_text(change))

    def remove(self, name: str) -> None:
        """End the process and take the TUN device away."""
        self._stop(name)
        link = read_link(name)
        if link is not None and link.kind == KIND:
            change_link("del", frozenset({errno.ENODEV}), ifname=name)

    # --- the process ------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        starts = self._starts.setdefault(name, _Starts())
        now = time.monotonic()
        if self._record(name).exists():  # there was one, and it did not end by our hand
            starts.short = starts.short + 1 if now - starts.at < LIVED else 0
            pause = PAUSES[min(starts.short, len(PAUSES) - 1)]
            if now < starts.at + pause:
                starts.short -= 1  # counted when it is tried
                left = starts.at + pause - now
                raise _error(
                    "start",
                    name,
                    f"wireguard-go ends again and again{self._last_words(name)}; next attempt in {left:.1f} s",
                )
            self.restarts += 1
            log.warning("wireguard-go of %s is gone%s; starting it again", name, self._last_words(name))
        starts.at = now
        self._await_end(name)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log(name).open("wb") as output:
                child = subprocess.Popen(
                    [self._binary, "-f", name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # signals to the agent's terminal are not meant for it
                    cwd="/",
                    env={"PATH": os.environ.get("PATH", os.defpath), "LOG_LEVEL": "error"},
                )
            _CHILDREN[child.pid] = child
            record = self._record(name).with_suffix(".new")
            record.write_text(json.dumps({"pid": child.pid, "started": _start_time(child.pid)[0]}))
            record.rename(self._record(name))
        except OSError as error:
            raise _error("start", name, f"{error.filename or self._binary}: {error.strerror}") from None
        self._wait_ready(name, child)
        log.info("wireguard-go of %s runs as process %d", name, child.pid)

    def _recorded(self, name: str) -> tuple[int, int]:
        """Return number and start time of the process that was started last; zeros if none is known."""
        try:
            record = json.loads(self._record(name).read_bytes())
            return int(record["pid"]), int(record["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, 0

    def _await_end(self, name: str) -> None:
        """Wait until the process before, dead already, has let go of the TUN device."""
        pid, started = self._recorded(name)
        if pid and _start_time(pid)[0] == started:
            _ended(pid, END)

    def _wait_ready(self, name: str, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY
        while child.poll() is None:
            with contextlib.suppress(BackendError):
                self._exchange(name, uapi.GET)
                return
            if time.monotonic() > deadline:
                raise _error("start", name, f"wireguard-go gives no answer within {READY:g} s")
            time.sleep(0.003)
        raise _error("start", name, f"wireguard-go ended with status {child.returncode}{self._last_words(name)}")

    def _stop(self, name: str) -> None:
        """End the process, if there is one, and forget it: its end counts for nothing."""
        pid = self.process(name)
        if pid is not None:
            self._end(pid)
        self._record(name).unlink(missing_ok=True)
        self._starts.pop(name, None)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    signal.pidfd_send_signal(descriptor, number)
                    if select.select([descriptor], [], [], END)[0]:
                        break
            finally:
                os.close(descriptor)
        child = _CHILDREN.pop(pid, None)
        if child is not None:
            child.wait()

    def _exchange(self, name: str, request: str) -> str:
        pid = self.process(name)
        if pid is None:
            raise _error("reach", name, "wireguard-go does not run")
        file = f"{SOCKETS}/{name}.sock"
        problem: OSError | None = None
        # The second: a process whose /run is its own. Not /proc/PID/root/var/run, a link that leads to our /run.
        for path in (Path("/var/run", file), Path(f"/proc/{pid}/root/run", file)):
            try:
                return uapi.exchange(path, request, pid=pid)
            except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
                problem = problem or error
            except OSError as error:
                problem = error
                break
        if isinstance(problem, ConnectionError) and _ended(pid, DYING):
            raise _error("reach", name, "wireguard-go has just ended")
        raise _error("reach", name, f"wireguard-go's socket: {problem}")

    def _make_tun(self, name: str) -> None:
        """Make a TUN device that stays without a process; wireguard-go sets its own flags when it attaches."""
        try:
            descriptor = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
                fcntl.ioctl(descriptor, TUNSETPERSIST, 1)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _error("create", name, f"{TUN}: {error.strerror}") from None

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = self._log(name).read_text(errors="replace").splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            if errors:
                return f" ({errors[-1][-200:]})"
        return ""

    def _record(self, name: str) -> Path:
        return self._directory / f"wireguard-go.{name}.json"

    def _log(self, name: str) -> Path:
        return self._directory / f"wireguard-go.{name}.log"


def _error(operation: str, name: str, reason: str) -> BackendError:
    return wireguard_error(operation, f"device {name}", reason)


def _ended(pid: int, seconds: float) -> bool:
    """Tell whether a process ends within that time: its sockets close before it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _start_time(pid: int) -> tuple[int, bool]:
    """Return when a process began (in the kernel's ticks, so that its number is not taken for another's; 0: it is
    gone), and whether it lives: not where only threads are left, or nobody has waited for it yet.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # proc(5)
    except OSError:
        return 0, False
    return int(fields[19]), fields[0] not in {"Z", "X"}
