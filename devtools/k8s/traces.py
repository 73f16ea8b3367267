"""What clusters of real Nodes leave on the machine that runs them, as values that can be compared.

Owns the list of places where kubelet, containerd, CNI plugins and kube-proxy are known to write outside of their
Node's namespaces. It looks; it removes nothing. Knows no cluster: an `Owner` says what belongs to one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devtools.nodes.netns import NETNS_DIRECTORY

# Of the whole machine, whatever namespace they are written in: kubelet sets these (pkg/kubelet/cm).
SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
# Directories that Nodes make beside those that were bound for them.
PLACES = (
    "/etc/cni",
    "/etc/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/flannel",
    "/run/mcagent",
    "/run/openvswitch",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/mcagent",
    "/var/log/containers",
    "/var/log/pods",
)
POD_NAMESPACE = "cni-"  # how containerd's names of Pods' network namespaces begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What belongs to the clusters: their directory, the cgroup of all Nodes, how names of namespaces begin."""

    directory: Path
    cgroup: str
    namespaces: str


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """One thing that is on the machine."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"


def traces(owner: Owner) -> frozenset[Trace]:
    """Return what is there now. What other programs on this machine do at the same time is not in it."""
    return frozenset(
        (
            *(Trace("mount", item) for item in _mounts(owner)),
            *(Trace("cgroup", str(path)) for path in _cgroups(owner)),
            *(Trace("network namespace", name) for name in _namespaces(owner)),
            *(Trace("process", item) for item in _processes(owner)),
            *(Trace("directory", str(path)) for path in _places(owner)),
            *(Trace("sysctl", item) for item in _sysctls()),
        )
    )


def left(before: frozenset[Trace], after: frozenset[Trace]) -> tuple[Trace, ...]:
    """Return what is there after and was not before, in an order for reading."""
    return tuple(sorted(after - before))


def _mounts(owner: Owner) -> Iterator[str]:
    names = _name_pattern(owner)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = _unescape(line.split(" ")[4])
        of_namespace = Path(point).parent == NETNS_DIRECTORY and names.match(Path(point).name)
        in_place = any(Path(point).is_relative_to(place) for place in PLACES)
        if of_namespace or in_place or _mentions(line, owner.directory):
            yield point


def _cgroups(owner: Owner) -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            top = Path(_unescape(before.split(" ")[4])) / owner.cgroup
            for directory, _, _ in os.walk(top):
                yield Path(directory)


def _namespaces(owner: Owner) -> Iterator[str]:
    """Return names in the directory of ip-netns(8): also files that are namespaces in a Node's mounts only."""
    pattern = _name_pattern(owner)
    with contextlib.suppress(FileNotFoundError):
        yield from (name for name in os.listdir(NETNS_DIRECTORY) if pattern.match(name))  # noqa: PTH208 (names)


def _processes(owner: Owner) -> Iterator[str]:
    """Return processes by what the kernel tells of them: cgroup, mounts, namespace, program, arguments."""
    named = {_inode(NETNS_DIRECTORY / name) for name in _namespaces(owner)} - {None}
    own_namespace = _inode(Path("/proc/self/ns/mnt"))
    mounted: dict[int | None, bool] = {
        own_namespace: False
    }  # by mount namespace: whether the directory is mounted there
    for path in Path("/proc").glob("[0-9]*"):
        if path.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            arguments = (path / "cmdline").read_bytes()
            if not arguments:  # of the kernel, or a zombie
                continue
            namespace = _inode(path / "ns/mnt")
            if namespace not in mounted:
                mounted[namespace] = _mentions((path / "mountinfo").read_text(), owner.directory)
            if (
                mounted[namespace]
                or _inode(path / "ns/net") in named
                or f"/{owner.cgroup}/" in (path / "cgroup").read_text()
                or _mentions(str((path / "exe").readlink()), owner.directory)
            ):
                words = arguments.decode(errors="replace").split("\0")
                yield f"{path.name} ({' '.join(words[:4]).strip()})"


def _places(owner: Owner) -> Iterator[Path]:
    for name in (*PLACES, str(owner.directory)):
        if (place := Path(name)).is_dir():
            yield place
            # Two levels are enough to name what came: the rest is below it.
            yield from (path for path in place.glob("*") if path.is_dir() and not path.is_symlink())


def _sysctls() -> Iterator[str]:
    for name in SYSCTLS:
        with contextlib.suppress(OSError):
            yield f"{name} = {(Path('/proc/sys') / name).read_text().strip()}"


def _name_pattern(owner: Owner) -> re.Pattern[str]:
    return re.compile(f"{re.escape(owner.namespaces)}|{POD_NAMESPACE}")


def _mentions(text: str, directory: Path) -> bool:
    return re.search(rf"{re.escape(str(directory))}(?![\w.-])", text) is not None


def _unescape(field: str) -> str:
    """Return a field of mountinfo with its octal escapes read (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
