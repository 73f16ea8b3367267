"""One real Node: PID, mount and UTS namespaces over a lab Node's network namespace, and what runs in them.

Owns the first process of the Node, the directories that it has for itself, and its cgroups. When the first process
ends, the kernel ends all others and unmounts everything; `stop` then removes what is on disk. Knows no Kubernetes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from devtools.errors import LabError
from devtools.nodes import netns
from devtools.waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")
PARENT = "mck8s"  # the cgroup that all Nodes' are in
# What each Node has for itself; /run/openvswitch is its Open vSwitch's directory.
OWN = (
    "var/lib/kubelet", "var/lib/containerd", "run/containerd", "etc/cni", "var/lib/cni", "run/openvswitch",
    "etc/openvswitch", "var/log/openvswitch", "run/mcagent", "var/lib/mcagent", "var/log/pods",
    "var/log/containers", "run/flannel", "run/netns", "opt/cni",
)  # fmt: skip
# What the kubelet sets (pkg/kubelet/cm, setupKernelTunables) is the machine's: each Node gets files in its place.
KERNEL_TUNABLES = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)  # fmt: skip


class Machine:
    """A Node's namespaces. `Machine(…)` names one that may be running; `start` makes it run."""

    def __init__(self, name: str, namespace: str, directory: Path, also_own: tuple[str, ...] = ()) -> None:
        """`also_own`: directories that the Node has for itself, beside `OWN`."""
        self.name, self.namespace, self.directory = name, namespace, directory
        self.own = (*OWN, *also_own)
        self.cgroup = f"{PARENT}/{namespace}"

    def start(self, pause: Path) -> None:
        """Start the first process and mount the Node's own directories. Raises LabError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        first = self.directory / "init"  # of a path of its own, so that its process is known by it
        shutil.copy2(pause, first)
        missing_places = [place for place in self.own if not Path("/", place).exists()]
        (self.directory / "made").write_text("\n".join(missing_places))
        for place in self.own:
            (self.directory / "root" / place).mkdir(parents=True, exist_ok=True)
            Path("/", place).mkdir(parents=True, exist_ok=True)
        command = ["nsenter", f"--net={netns.NETNS_DIRECTORY / self.namespace}"]
        command += ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # slave: the machine can unmount a namespace's name for all, so that none outlives its Node
        command += ["--propagation", "slave", str(first)]
        _leave_running(command)
        wait_until(lambda: self.pid, f"the first process of {self.name}")
        for place in self.own:
            self.run(["mount", "--bind", str(self.directory / "root" / place), f"/{place}"])
        for number, name in enumerate(KERNEL_TUNABLES):
            copy = self.directory / f"sysctl-{number}"
            copy.write_text((Path("/proc/sys") / name).read_text())
            self.run(["mount", "--bind", str(copy), f"/proc/sys/{name}"])
        self.run(["mount", "--make-rshared", "/"])
        self.run(["hostname", self.name])
        self._make_cgroups()

    @property
    def pid(self) -> int | None:
        """The first process, as the machine numbers it; None while there is none."""
        first = str(self.directory / "init").encode()
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if cmdline.read_bytes().split(b"\0")[0] == first:
                    return int(cmdline.parent.name)
        return None

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the command that runs `argv` on the Node. Raises LabError when it is not running."""
        pid = self.pid
        if pid is None:
            raise LabError(f"Node {self.name} does not run")
        return ["nsenter", "--target", str(pid), "--net", "--mount", "--uts", "--pid", "--", *map(str, argv)]

    def run(self, argv: Sequence[str | Path], *, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run a command on the Node to its end and return what it prints. Raises LabError."""
        return netns.run(self.command(argv), stdin=stdin, timeout=timeout).stdout

    def spawn(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a program on the Node that goes on when this process ends; its output is in NAME.log."""
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with (self.directory / f"{name}.log").open("ab") as log:
            environment["PATH"] = f"{environment.get('PATH', os.defpath)}:/usr/sbin:/sbin"
            _leave_running(self.command(argv), log, environment)

    def end(self, program: str) -> None:
        """End a program that `spawn` has started, in an orderly way. Raises LabError when it does not end."""
        pid = self._find(program)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            wait_until(
                lambda: not Path(f"/proc/{pid}").exists(), f"the end of {program} on {self.name}", timeout=30.0
            )

    def kill(self) -> None:
        """End everything on the Node at once."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of {self.name}", timeout=30.0)

    def forget(self) -> None:
        """Empty what a Node that runs keeps in memory: /run."""
        for place in self.own:
            if place.startswith("run/"):
                shutil.rmtree(self.directory / "root" / place, ignore_errors=True)

    def stop(self) -> None:
        """End everything on the Node, and remove its directories and cgroups."""
        self.kill()
        for cgroup in self._cgroups():
            wait_until(lambda path=cgroup: _removed(path), f"no process in {cgroup}", timeout=30.0)  # type: ignore[misc]
        with contextlib.suppress(FileNotFoundError):
            for place in (self.directory / "made").read_text().splitlines():
                _remove_empty(Path("/", place))
        shutil.rmtree(self.directory, ignore_errors=True)

    def _find(self, program: str) -> int | None:
        """Return the process of a program (or Python module) of the Node, as the machine numbers it."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (directory / "cmdline").read_bytes().split(b"\0")
                named = program in {Path(words[0].decode()).name, *(word.decode() for word in words[1:3])}
                if named and (directory / "ns/pid").readlink() == space:
                    return int(directory.name)
        return None

    def _make_cgroups(self) -> None:
        """Make the kubelet's root cgroup: in every hierarchy (cgroups(7), version 1), or in the only one."""
        if (CGROUPS / "cgroup.controllers").exists():
            controllers = "+cpu +cpuset +io +memory +pids +hugetlb"
            for path in (CGROUPS, CGROUPS / PARENT, CGROUPS / self.cgroup):
                path.mkdir(exist_ok=True)
                available = (path / "cgroup.controllers").read_text().split()
                (path / "cgroup.subtree_control").write_text(
                    " ".join(c for c in controllers.split() if c[1:] in available)
                )
            return
        for path in self._cgroups(existing=False):
            path.mkdir(parents=True, exist_ok=True)
            for cgroup in (path.parent, path):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (cgroup / name).exists():
                        (cgroup / name).write_text((cgroup.parent / name).read_text())

    def _cgroups(self, *, existing: bool = True) -> list[Path]:
        roots = (
            [CGROUPS]
            if (CGROUPS / "cgroup.controllers").exists()
            else [p for p in CGROUPS.iterdir() if p.is_dir()]
        )
        return [path for root in roots if (path := root / self.cgroup).exists() or not existing]


def _leave_running(
    argv: Sequence[str], output: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Start a program without a parent, in a session of its own."""
    to = subprocess.DEVNULL if output is None else output
    command = ["setsid", "--fork", *argv]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=to, stderr=to, env=environment, check=True)


def _removed(cgroup: Path) -> bool:
    """Remove a cgroup with all below it, and its parent if that is empty then; tell whether it is gone."""
    for path in sorted((p for p in cgroup.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        cgroup.rmdir()
        cgroup.parent.rmdir()
    return not cgroup.exists()


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
