"""What real Nodes could leave on a machine is found there, kind by kind, and nothing of anybody else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from devtools.k8s.traces import PLACES, Owner, Trace, left, traces
from devtools.nodes import netns
from devtools.waiting import wait_until

pytestmark = pytest.mark.contract

HIERARCHIES = [
    Path(line.split(" ")[4])
    for line in Path("/proc/self/mountinfo").read_text().splitlines()
    if line.partition(" - ")[2].startswith("cgroup")
]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """Give an owner whose names nobody else on this machine has."""
    name = f"mct{os.getpid()}-k"
    return Owner(directory=tmp_path, cgroup=name, namespaces=f"{name}-")


@contextmanager
def _mounted(source: Path, point: Path) -> Iterator[None]:
    netns.run(["mount", "--bind", str(source), str(point)])
    try:
        yield
    finally:
        netns.run(["umount", str(point)])


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    path.mkdir()
    try:
        yield
    finally:
        path.rmdir()


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    netns.create(name)
    try:
        yield
    finally:
        netns.delete(name)


@contextmanager
def _file(path: Path) -> Iterator[None]:
    path.touch()
    try:
        yield
    finally:
        path.unlink()


@contextmanager
def _running(argv: list[str]) -> Iterator[int]:
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as child:
        wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", "the program to have begun")
        try:
            yield child.pid
        finally:
            child.kill()


def _new(owner: Owner, before: frozenset[Trace]) -> set[tuple[str, str]]:
    return {(trace.kind, trace.what) for trace in left(before, traces(owner))}


def _comes_and_goes(owner: Owner, *entered: object, expected: tuple[str, str]) -> None:
    with ExitStack() as stack:
        before = traces(owner)
        for trace in entered:
            stack.enter_context(trace)  # type: ignore[arg-type]
        assert expected in _new(owner, before)
    assert expected not in _new(owner, before)


def test_a_mount_of_the_directory_is_found_wherever_it_is(owner: Owner, tmp_path: Path) -> None:
    """A bind mount is named by its mount point, and is gone with it."""
    source, point = tmp_path / "a", tmp_path.parent / f"{owner.cgroup} point"
    source.mkdir()
    _comes_and_goes(owner, _directory(point), _mounted(source, point), expected=("mount", str(point)))


def test_a_namespace_that_only_a_node_had_mounted_leaves_its_file(owner: Owner) -> None:
    """The empty file of a Pod's network namespace, which ip-netns(8) goes on listing, is found."""
    name = f"cni-{owner.cgroup}"
    netns.NETNS_DIRECTORY.mkdir(exist_ok=True)
    _comes_and_goes(owner, _file(netns.NETNS_DIRECTORY / name), expected=("network namespace", name))


def test_a_namespace_is_found_by_its_name(owner: Owner) -> None:
    """A network namespace of a Node is found."""
    name = f"{owner.namespaces}a"
    _comes_and_goes(owner, _namespace(name), expected=("network namespace", name))


@pytest.mark.skipif(not HIERARCHIES, reason="no hierarchy of cgroups is mounted here")
def test_cgroups_are_found_in_every_hierarchy(owner: Owner) -> None:
    """A cgroup that stays in any one of the hierarchies is found."""
    for hierarchy in HIERARCHIES:
        path = hierarchy / owner.cgroup
        _comes_and_goes(owner, _directory(path), expected=("cgroup", str(path)))


def test_a_process_is_found_by_the_mounts_that_it_holds(owner: Owner, tmp_path: Path) -> None:
    """A process in a mount namespace where the directory is mounted is found: it keeps these mounts alive."""
    source, point = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    point.mkdir()
    before = traces(owner)
    with _mounted(source, point), _running(["unshare", "--mount", "sleep", "60"]) as pid:
        assert ("process", f"{pid} (sleep 60)") in _new(owner, before)
    assert ("process", f"{pid} (sleep 60)") not in _new(owner, before)


def test_a_process_is_found_by_its_network_namespace(owner: Owner) -> None:
    """A process in a Node's namespace is found, though nothing in its command line names it."""
    name = f"{owner.namespaces}a"
    before = traces(owner)
    command = ["nsenter", f"--net={netns.NETNS_DIRECTORY / name}", "sleep", "61"]
    with _namespace(name), _running(command) as pid:
        assert ("process", f"{pid} (sleep 61)") in _new(owner, before)
    assert ("process", f"{pid} (sleep 61)") not in _new(owner, before)


def test_what_others_do_is_not_found(owner: Owner, tmp_path: Path) -> None:
    """Mounts, namespaces and processes of other labs on this machine are nobody's trace."""
    other = tmp_path.parent / f"{tmp_path.name}2"  # begins alike
    name = f"mct{os.getpid()}-other"
    before = traces(owner)
    with (
        _directory(other),
        _mounted(other, other),
        _namespace(name),
        _running(["nsenter", f"--net={netns.NETNS_DIRECTORY / name}", "sleep", "62"]) as pid,
    ):
        found = _new(owner, before)
    assert not [what for _, what in found if str(other) in what or name in what or what.startswith(f"{pid} ")]


def test_a_directory_that_nodes_make_is_found(owner: Owner) -> None:
    """A directory which kubelet or containerd makes on the machine is found where it was not before."""
    place = next((Path(name) for name in PLACES if not Path(name).exists() and Path(name).parent.is_dir()), None)
    if place is None:
        pytest.skip("this machine has all directories that Nodes make: another Kubernetes runs here")
    _comes_and_goes(owner, _directory(place), expected=("directory", str(place)))


def test_traces_read_in_an_order_by_kind(owner: Owner) -> None:
    """What is left is listed by kind and name, in words."""
    found = left(
        frozenset(), frozenset({Trace("process", "7 (shim)"), Trace("mount", "/b"), Trace("mount", "/a")})
    )
    assert [str(trace) for trace in found] == ["mount /a", "mount /b", "process 7 (shim)"]
