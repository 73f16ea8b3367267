"""Removes what interrupted runs left on this machine: `python -m devtools.leftovers`.

Something is left over when the process that it was made for is gone. Labs and clusters record that process by pid
and start time, and so do processes that tests start, in their environment. Namespaces and cgroups of contract
tests (mctPID-NAME) and temporary directories (mcagent-WORD.PID.RANDOM, mct.PID.RANDOM) have its pid in the name.
Labs without such a process (of `mclab up`, `mck8s up`, `--keep`) stay, and so does what belongs to another user.
Prints a line for each thing, then how much of the machine is free. Never fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from devtools.errors import LabError
from devtools.k8s.lab import STATE, K8sLab
from devtools.k8s.machine import CGROUPS
from devtools.lab import state
from devtools.lab.lab import Lab
from devtools.lab.progress import Progress
from devtools.nodes import netns
from devtools.processes import MARK, start_time

LOCK = Path("/run/mcagent-leftovers.lock")
PROCESS = "process"  # file in a temporary directory: pid and start time of a process that runs for its owner
_NAMESPACE = re.compile(r"mct(\d+)-[a-z0-9-]+")
_DIRECTORY = re.compile(r"(?:mcagent-[a-z0-9-]+|mct)\.(\d+)\.\w+")
_MARGIN = 60.0  # seconds: a process that started so much later than a namespace did not make it
_MARKED = re.compile(rb"(?:^|\0)" + MARK.encode() + rb"=(\d+) (\d+)(?:\0|$)")
# What it is, and what removes it: False if it is in use.
Removal = tuple[str, Callable[[], bool | None]]


def processes() -> Iterator[Removal]:
    """Yield processes of this user that tests have started and that outlived them."""
    space = Path("/proc/self/ns/pid").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, LabError):  # it has ended meanwhile
            if path.stat().st_uid != os.geteuid() or (path / "ns/pid").readlink() != space:
                continue  # of another PID namespace, where pids are others
            match = _MARKED.search((path / "environ").read_bytes())
            if match and not state.Process(pid=int(match[1]), start=int(match[2])).alive:
                argv = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                process = state.process_of(int(path.name), argv)
                yield f"process {path.name} ({' '.join(argv)[:80].strip()})", lambda it=process: state.end([it])  # type: ignore[misc]


def labs(root: Path | None = None) -> Iterator[Removal]:
    """Yield labs, whole or not, whose owner is gone."""
    directories = sorted(path for path in (root or state.ROOT).glob("[!.]*") if path.is_dir())
    for directory in directories:
        yield f"lab {directory.name}", lambda name=directory.name: Lab(name, root).remove_abandoned()  # type: ignore[misc]


def clusters() -> Iterator[Removal]:
    """Yield the clusters of real Kubernetes if their owner is gone."""
    if STATE.exists():
        yield f"clusters of real Kubernetes in {STATE}", lambda: K8sLab.remove_abandoned(Progress(quiet=True))


def namespaces() -> Iterator[Removal]:
    """Yield namespaces of contract tests whose process is gone, with the processes in them."""
    for path in sorted(netns.NETNS_DIRECTORY.glob("mct*")):
        match = _NAMESPACE.fullmatch(path.name)
        if match and not _made_by(int(match[1]), path):
            yield f"namespace {path.name}", lambda name=path.name: _remove_namespace(name)  # type: ignore[misc]


def _made_by(pid: int, path: Path) -> bool:
    """Whether the process with this pid may have made the file: it started before."""
    ticks = start_time(pid)
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - path.stat().st_mtime
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks or 0) / os.sysconf("SC_CLK_TCK")
        return ticks is not None and seconds > age - _MARGIN
    return True  # it is gone


def _remove_namespace(name: str) -> None:
    state.end(state.in_namespaces([name]))
    netns.delete(name)


def cgroups() -> Iterator[Removal]:
    """Yield cgroups of contract tests whose process is gone."""
    for path in sorted({*CGROUPS.glob("mct*-*"), *CGROUPS.glob("*/mct*-*")}):
        match = _NAMESPACE.fullmatch(path.name)
        if match and start_time(int(match[1])) is None:
            yield f"cgroup {path}", path.rmdir


def directories(bases: Iterable[Path]) -> Iterator[Removal]:
    """Yield temporary directories of this user whose process is gone."""
    for base in sorted(set(bases)):
        for path in sorted(path for word in ("mcagent-*", "mct.*") for path in base.glob(word)):
            match = _DIRECTORY.fullmatch(path.name)
            own = path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.geteuid()
            if match and own and start_time(int(match[1])) is None:
                yield f"directory {path}", lambda path=path: _remove_directory(path)  # type: ignore[misc]


def _remove_directory(directory: Path) -> None:
    """End the process that is recorded in a directory, unmount what is mounted in it, remove it."""
    with contextlib.suppress(FileNotFoundError):
        pid, start = map(int, (directory / PROCESS).read_text().split())
        state.end([state.Process(pid=pid, start=start)])
    for point in reversed(_mounts(directory)):
        netns.run(["umount", point])
    if _mounts(directory):  # the files may be anything's
        raise LabError("something is mounted in it")
    shutil.rmtree(directory)


def _mounts(directory: Path) -> list[str]:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory.resolve())]


def remove(removals: Iterable[Removal]) -> Iterator[str]:
    """Remove things; yield what was removed and what cannot be removed."""
    for thing, action in removals:
        try:
            if action() is not False:
                yield f"removed what an interrupted run left: {thing}"
        except (LabError, OSError, ValueError) as error:
            yield f"cannot remove what an interrupted run left: {thing}: {error}"


def machine() -> str:
    """Return how much of the machine is free."""
    memory = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    names = ("/var/tmp", tempfile.gettempdir())  # noqa: S108  (of others)
    places = {path.stat().st_dev: path for path in map(Path, names)}
    disks = ", ".join(f"{shutil.disk_usage(path).free / 1e9:.1f} GB on {path}" for path in places.values())
    free = int(memory[1]) / 1e6 if memory else 0.0
    return f"free: {free:.1f} GB of memory, {disks}; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors"


def main() -> None:
    """Remove everything that is left over."""
    say = Progress()
    bases = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")}  # noqa: S108  (of others)
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:
            # Of two runs that begin at once the second finds nothing.
            fcntl.flock(stack.enter_context(LOCK.open("w")), fcntl.LOCK_EX)
            for removals in (processes(), labs(), clusters(), namespaces(), cgroups()):
                for line in remove(removals):
                    say.line(line)
        else:
            say.line("not root: labs and namespaces that interrupted runs left are not looked for")
        for line in remove((*processes(), *directories(bases))):
            say.line(line)
    say.line(machine())


if __name__ == "__main__":
    main()
