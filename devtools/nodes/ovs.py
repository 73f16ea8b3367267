"""One Open vSwitch per network namespace: ovsdb-server and ovs-vswitchd with a directory of their own.

Owns the two daemons it started, known by their pid files in that directory, and ends only those. Never
touches an Open vSwitch of the host: every tool is given the socket it talks to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path

from devtools.errors import LabError
from devtools.nodes.netns import command, run
from devtools.processes import start_time
from devtools.waiting import wait_until

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
SOCKET_PATH_MAX = 107  # bytes, sockaddr_un.sun_path less the final zero (unix(7))
NICENESS = "-10"  # of both daemons, as ovs-ctl(8) starts them on a Node
CONTROL_TIMEOUT = 20.0  # seconds for an answer to a command
MAX_IDLE = 10_000  # milliseconds that an unused flow stays in the datapath: OVS' own default
LONGEST_SOCKET_NAME = len("/.mgmt") + 15  # a bridge's name has at most 15 characters (IFNAMSIZ)


def _json(text: bytes) -> dict[str, object] | None:
    """Return the JSON object, or None while it is not complete."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    assert isinstance(value, dict)
    return value


def _clock_offset() -> int:
    """Return by how many milliseconds the monotonic clock here is ahead of the kernel's own (time_namespaces(7)).

    The kernel's datapath tells by its own clock when a flow was used last: in a time namespace that is ahead, as
    in the test kernel, ovs-vswitchd takes every flow for idle and removes it twice a second.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/timens_offsets").read_text().splitlines():
            clock, seconds, _ = line.split()
            if clock == "monotonic":
                return max(int(seconds), 0) * 1000
    return 0


class OvsInstance:
    """An Open vSwitch of its own. `OvsInstance(…)` names one that may be running; `start` makes one run."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory.resolve()
        if len(str(self.directory)) + LONGEST_SOCKET_NAME > SOCKET_PATH_MAX:
            raise LabError(f"{self.directory}: too long a path for the sockets of an Open vSwitch")

    @classmethod
    def start(cls, namespace: str, directory: Path) -> OvsInstance:
        """Start both daemons in `namespace` ("" is the caller's own), with all files in `directory`.

        A database that is there already is kept. Raises LabError.
        """
        instance = cls(namespace, directory)
        instance.directory.mkdir(parents=True, exist_ok=True)
        if not instance._database.exists():
            run(["ovsdb-tool", "create", str(instance._database), str(SCHEMA)])
        instance.start_ovsdb()
        try:
            # One handler and one revalidator: a lab runs many of these on few cores.
            instance.vsctl(
                "--no-wait",
                *("--", "init"),
                *("--", "set", "Open_vSwitch", "."),
                *("other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1"),
                f"other_config:max-idle={MAX_IDLE + _clock_offset()}",
            )
            instance.start_vswitchd()
        except LabError:
            instance.stop()
            raise
        return instance

    @property
    def _database(self) -> Path:
        return self.directory / "conf.db"

    @property
    def socket(self) -> str:
        """The database's socket as OVS tools and the agent take it: "unix:PATH"."""
        return f"unix:{self.directory / 'db.sock'}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point OVS tools and the agent at this instance (beside the caller's own)."""
        directory = str(self.directory)
        return {**os.environ, "OVS_RUNDIR": directory, "OVS_DBDIR": directory, "OVS_LOGDIR": directory}

    def mgmt(self, bridge: str) -> str:
        """Return a bridge's OpenFlow management socket as ovs-ofctl(8) takes it: "unix:PATH"."""
        return f"unix:{self.directory / f'{bridge}.mgmt'}"

    @property
    def pids(self) -> dict[str, int]:
        """The running daemons of this instance: "ovsdb-server" and "ovs-vswitchd" by pid."""
        pids_or_none = {name: self._pid(name) for name in ("ovsdb-server", "ovs-vswitchd")}
        return {name: pid for name, pid in pids_or_none.items() if pid is not None}

    def start_ovsdb(self) -> None:
        """Start ovsdb-server on the database and return when it answers."""
        self._spawn("ovsdb-server", [str(self._database), f"--remote=p{self.socket}"])

    def stop_ovsdb(self) -> None:
        """End ovsdb-server; ovs-vswitchd goes on forwarding with what it has."""
        self._end("ovsdb-server", signal.SIGTERM)

    def start_vswitchd(self) -> None:
        """Start ovs-vswitchd and return when it has taken over the database's configuration once."""
        self._spawn("ovs-vswitchd", [self.socket])

    def stop_vswitchd(self) -> None:
        """End ovs-vswitchd in an orderly way."""
        self._end("ovs-vswitchd", signal.SIGTERM)

    def kill_vswitchd(self) -> None:
        """End ovs-vswitchd with SIGKILL, as a crash would: flows and groups are gone with it."""
        self._end("ovs-vswitchd", signal.SIGKILL)

    def stop(self) -> None:
        """End both daemons, whatever their state. The directory stays."""
        self._end("ovs-vswitchd", signal.SIGTERM)
        self._end("ovsdb-server", signal.SIGTERM)

    def vsctl(self, *args: str) -> str:
        """Run ovs-vsctl(8) on this instance and return its output."""
        return run(["ovs-vsctl", "--timeout=20", f"--db={self.socket}", *args]).stdout

    def ofctl(self, *args: str, stdin: str | None = None) -> str:
        """Run ovs-ofctl(8) with OpenFlow 1.5; name bridges by `mgmt`. Returns its output."""
        return run(["ovs-ofctl", "--timeout=20", "-O", "OpenFlow15", *args], stdin=stdin).stdout

    def appctl(self, *args: str, daemon: str = "ovs-vswitchd") -> str:
        """Give one of the daemons a command as ovs-appctl(8) does (without its process), and return the answer."""
        command = json.dumps({"method": args[0], "params": args[1:], "id": 0}).encode()
        subject = f"{daemon} in {self.directory}: {' '.join(args)}"
        text = b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
                control.settimeout(CONTROL_TIMEOUT)
                control.connect(str(self._control(daemon)))
                control.sendall(command)
                while (answer := _json(text)) is None:
                    text += (part := control.recv(65536))
                    if not part:
                        raise LabError(f"{subject}: no answer")
        except OSError as error:
            raise LabError(f"{subject}: {error}") from None
        if answer.get("error"):
            raise LabError(f"{subject}: {answer['error']}")
        return str(answer["result"])

    def _control(self, daemon: str) -> Path:
        named = self.directory / f"{daemon}.ctl"
        # Of daemons that another process started here the name has the pid, as ovs-appctl(8) expects it.
        return named if named.exists() else next(self.directory.glob(f"{daemon}.*.ctl"), named)

    def _spawn(self, daemon: str, args: list[str]) -> None:
        if self._pid(daemon) is not None:
            return
        options = [
            "--detach",  # returns when the daemon is ready
            "--no-chdir",
            f"--pidfile={self.directory / f'{daemon}.pid'}",
            f"--unixctl={self._control(daemon)}",
            f"--log-file={self.directory / f'{daemon}.log'}",
            "-vconsole:off",
            "-vsyslog:off",
        ]
        nice = ["nice", "-n", NICENESS]
        run(command(self.namespace, [*nice, daemon, *args, *options]), env=self.environment)
        by_pid = self.directory / f"{daemon}.{self._pid(daemon)}.ctl"  # where ovs-appctl(8) looks
        if not by_pid.exists():
            by_pid.symlink_to(self._control(daemon).name)

    def _pid(self, daemon: str) -> int | None:
        """Return the daemon's pid, only if that process lives and is this instance's."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.directory / f"{daemon}.pid").read_text())
            if self._is_ours(pid, daemon):
                return pid
        return None

    def _is_ours(self, pid: int, daemon: str) -> bool:
        # A pid may have been given to another process since: the command line names our pid file. It is empty as
        # soon as the daemon exits, while its successor cannot start yet: the lock of the pid file is still held.
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not argv:
                return start_time(pid) is not None and Path(f"/proc/{pid}/comm").read_text().strip() == daemon
            return f"--pidfile={self.directory / f'{daemon}.pid'}".encode() in argv.split(b"\0")
        return False

    def _end(self, daemon: str, first: signal.Signals) -> None:
        pid = self._pid(daemon)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, first)
        try:
            wait_until(lambda: not self._is_ours(pid, daemon), f"end of {daemon} ({pid})")
        except LabError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self._is_ours(pid, daemon), f"end of {daemon} ({pid}) after SIGKILL")
