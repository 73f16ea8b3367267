"""A running lab on disk: its topology, its namespaces, and the processes started for it.

Owns the lab's directory (below `ROOT` by default). Names are written down before the things are made, so
that a lab whose maker crashed half way can still be taken down, from any process. A process is known by pid and
start time (/proc/PID/stat, proc(5)): a pid that was given to another process since is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from devtools.errors import LabError
from devtools.lab.topology import Topology
from devtools.lab.topology_file import from_dict, to_dict
from devtools.nodes import netns
from devtools.processes import start_time
from devtools.waiting import wait_until

ROOT = Path("/run/mcagent-lab")
MARK = "MCLAB_DIRECTORY"  # variable of every process that `spawn` starts: the directory of its lab
OWNER = "MCLAB_OWNER"  # variable: pid of the process that labs are made for, if that is not their maker
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?")  # paths of sockets are short (unix(7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that the lab started. `start` is its start time in clock ticks since boot."""

    pid: int
    start: int
    argv: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether that very process runs, or has files open yet (a zombie has not)."""
        return start_time(self.pid) == self.start


def process_of(pid: int, argv: Sequence[str] = ()) -> Process:
    """Return the identity of a running process. Raises LabError when there is none of that pid."""
    start = start_time(pid)
    if start is None:
        raise LabError(f"process {pid} ({' '.join(argv)}) ended at once")
    return Process(pid=pid, start=start, argv=tuple(argv))


def owner() -> Process:
    """Return the process without which what this one makes is left over: $MCLAB_OWNER, or this one."""
    return process_of(int(os.environ.get(OWNER) or os.getpid()))


def end(processes: Sequence[Process], *, timeout: float = 5.0) -> None:
    """End processes: SIGTERM to all, SIGKILL to those that are still there after `timeout` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.alive]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        try:
            wait_until(lambda running=running: not _alive(running), "processes to end", timeout=timeout)  # type: ignore[misc]
        except LabError:
            continue
        return
    names = ", ".join(f"{p.pid} ({' '.join(p.argv[:4])})" for p in processes if p.alive)
    if names:
        raise LabError(f"cannot end: {names}")


def _alive(processes: Sequence[Process]) -> bool:
    for process in processes:  # children of this very process are zombies until they are waited for
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(process.pid, os.WNOHANG)
    return any(process.alive for process in processes)


@contextlib.contextmanager
def exclusive(name: str, root: Path = ROOT) -> Iterator[None]:
    """Have a lab's name alone on this machine until the block ends.

    Raises LabError if another process has it, or a lab of that name is up: a demo takes away only its own.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / f".{name}.demo"  # not the file of `State.lock`, which the block itself locks
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                f"another demo uses the lab {name} on this machine: wait for its end, or give --name or MCLAB_NAME"
            ) from None
        try:
            lab = State(name, root)
            if lab.exists and not lab.abandoned:
                raise LabError(
                    f"lab {name} is up: give --name or MCLAB_NAME, or take it down: "
                    f"devtools/mclab down --name {name}"
                )
            yield
        finally:
            path.unlink(missing_ok=True)


class State:
    """The directory of one lab."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise LabError(f'"{name}" cannot name a lab: 1 to 16 of a-z, 0-9 and, inside, "-"')
        self.name = name
        self.root = root or ROOT
        self.directory = self.root / name

    @property
    def exists(self) -> bool:
        """Whether there is such a lab, complete or not."""
        return (self.directory / "lab.json").exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from making or taking down the same lab. Raises LabError if one is at it."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / f".{self.name}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A maker that was killed may still be on its way out.
            wait_until(lambda: _locked(descriptor), "the lab's lock", timeout=5.0)
        except LabError:
            os.close(descriptor)
            raise LabError(f"lab {self.name}: another process is making it or taking it down") from None
        try:
            yield
        finally:
            if not self.directory.exists():
                path.unlink(missing_ok=True)
            os.close(descriptor)

    def create(self, topology: Topology, namespaces: Sequence[str]) -> None:
        """Write down what is going to be made. Raises LabError when a namespace of that name is there already."""
        existing = [name for name in namespaces if netns.exists(name)]
        if existing:
            raise LabError(
                f"lab {self.name}: network namespaces exist that it did not make: {', '.join(existing)}"
            )
        (self.directory / "processes").mkdir(parents=True)
        self.directory.chmod(0o755)
        document = {"topology": to_dict(topology), "namespaces": list(namespaces), "owner": asdict(owner())}
        write(self.directory / "lab.json", document)

    def keep(self) -> None:
        """Let the lab outlive its maker, but not a process that $MCLAB_OWNER names."""
        if not os.environ.get(OWNER):
            self.note("owner", None)

    @property
    def abandoned(self) -> bool:
        """Whether the process that the lab was made for is gone. Without a lab.json nothing was made yet."""
        record = self.noted("owner") if self.exists else None
        if not isinstance(record, dict):
            return self.directory.exists() and not self.exists
        return not Process(pid=record["pid"], start=record["start"]).alive

    def topology(self) -> Topology:
        """Read the topology back. Raises LabError when there is no such lab."""
        return from_dict(self._read()["topology"], f"lab {self.name}")

    def namespaces(self) -> list[str]:
        """The names of all its namespaces, made or not."""
        names = self._read()["namespaces"]
        assert isinstance(names, list)
        return names

    def note(self, key: str, value: object) -> None:
        """Keep a fact about the running lab ("datapath", "ready")."""
        write(self.directory / "lab.json", {**self._read(), key: value})

    def noted(self, key: str) -> object:
        """Return a fact kept by `note`, or None."""
        return self._read().get(key)

    def _read(self) -> dict[str, object]:
        try:
            document = json.loads((self.directory / "lab.json").read_text())
        except FileNotFoundError:
            raise LabError(f"there is no lab {self.name} (devtools/mclab status lists those there are)") from None
        assert isinstance(document, dict)
        return document

    def spawn(
        self, key: str, namespace: str, argv: Sequence[str], *, log: Path, env: dict[str, str] | None = None
    ) -> Process:
        """Start a process in a namespace, with its output appended to `log`, and write it down under `key`."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                netns.command(namespace, argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the lab's terminal is not for it
                env={**(os.environ if env is None else env), MARK: str(self.directory)},
            )
        process = process_of(child.pid, argv)
        child.returncode = 0  # it outlives us: no ResourceWarning; `_alive` reaps it where it is ours
        write(self._record(key), asdict(process))
        return process

    def process(self, key: str) -> Process | None:
        """Return what was started under `key`, running or not."""
        try:
            record = json.loads(self._record(key).read_text())
        except FileNotFoundError:
            return None
        return Process(pid=record["pid"], start=record["start"], argv=tuple(record["argv"]))

    def processes(self) -> dict[str, Process]:
        """Everything that was started, by key."""
        keys = sorted(path.stem for path in (self.directory / "processes").glob("*.json"))
        by_key = {key: self.process(key) for key in keys}
        return {key: process for key, process in by_key.items() if process is not None}

    def stop(self, key: str, *, timeout: float = 5.0) -> None:
        """End what was started under `key`."""
        process = self.process(key)
        if process is not None:
            end([process], timeout=timeout)
            self._record(key).unlink(missing_ok=True)

    def _record(self, key: str) -> Path:
        return self.directory / "processes" / f"{key}.json"

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()


def labs(root: Path | None = None) -> list[str]:
    """Return the names of all labs there are."""
    return sorted(path.parent.name for path in (root or ROOT).glob("*/lab.json"))


def in_namespaces(names: Sequence[str]) -> list[Process]:
    """Return every process that runs inside one of the namespaces."""
    inodes = {(netns.NETNS_DIRECTORY / name).stat().st_ino for name in names if netns.exists(name)}
    return _select(lambda path: (path / "ns/net").stat().st_ino in inodes)


def marked(directory: Path) -> list[Process]:
    """Return every process that the lab of this directory spawned, written down or not."""
    mark = f"{MARK}={directory}".encode()
    return _select(lambda path: mark in (path / "environ").read_bytes().split(b"\0"))


def making(prefix: str) -> list[Process]:
    """Return the runs of ip(8) under way on namespaces with this prefix: of a maker that was killed meanwhile."""

    def is_one(path: Path) -> bool:
        argv = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return Path(argv[0]).name == "ip" and any(word.startswith(prefix) for word in argv[1:])

    return _select(is_one)


def _select(wanted: Callable[[Path], bool]) -> list[Process]:
    selected = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, LabError):  # it has ended meanwhile
            if wanted(path):
                argv = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                selected.append(process_of(int(path.name), argv))
    return selected


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write(path: Path, value: object) -> None:
    """Write a JSON file in one step."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value, indent=1))
    part.replace(path)
