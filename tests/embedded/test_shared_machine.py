"""Two clones on one machine share neither ports nor what they have built, whatever their revisions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
FAKE_GO = """#!/bin/bash
# Stands for the Go toolchain: "builds" each package, slowly, and writes down that it did.
[ "$1" != env ] || echo go9.99
[ "$1" = build ] || exit 0
while [ "$1" != -o ]; do shift; done
out=$2
shift 2
echo "${PWD##*/}" >>"$BUILDS"
sleep 0.2
[ "${out%/}" = "$out" ] || mkdir -p "$out"
for package in "$@"; do
    file=$out
    [ "${out%/}" = "$out" ] || file=$out${package##*/}
    printf '#!/bin/bash\\necho %s\\n' "$PWD" >"$file"
    chmod +x "$file"
done
"""
SCRIPTS = {  # script: the directory of what it builds, a file of that, and the number of programs built
    "tests/kube/find-apiserver": ("tests/kube", "apiserver/go.mod", 3),
    "tests/helm/find-helm": ("tests/helm", "module/go.mod", 1),
    "devtools/k8s/find-programs": ("devtools/k8s", "programs/pod/go.mod", 5),
}


def clone(directory: Path, sources: str) -> Path:
    """Copy what a script needs of this tree."""
    for name in (sources, ".ci"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "devtools").mkdir(exist_ok=True)
    shutil.copy(ROOT / "devtools/cache.sh", directory / "devtools")
    return directory


@pytest.mark.skipif(
    shutil.which("kube-apiserver", path=SYSTEM) is not None, reason="the machine has a kube-apiserver of its own"
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_two_revisions_keep_each_other_s_builds(script: str, tmp_path: Path) -> None:
    """Clones of one revision build once, even at the same time; another revision gets a version of its own."""
    sources, pinned, count = SCRIPTS[script]
    first, second, other = (clone(tmp_path / name, sources) for name in ("first", "second", "other"))
    with (other / sources / pinned).open("a") as file:
        file.write("// another revision\n")
    builds, go = tmp_path / "builds", tmp_path / "go"
    go.mkdir()
    for name, text in (("go", FAKE_GO), ("gcc", "#!/bin/sh\n")):
        (go / name).write_text(text)
        (go / name).chmod(0o755)
    environment = {"PATH": f"{go}:{SYSTEM}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "BUILDS": str(builds)}

    def run(tree: Path, *options: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [tree / script, *options], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()

    assert run(first) == (1, [])
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda tree: run(tree, "--build"), (first, second)))
    assert results[0][0] == 0
    assert results[0][1]
    assert results[1] == results[0]
    assert len(builds.read_text().splitlines()) == count
    assert run(other) == (1, [])  # what another revision has built is not taken
    status, paths = run(other, "--build")
    assert status == 0
    assert paths != results[0][1]
    for tree, expected in ((first, results[0][1]), (second, results[0][1]), (other, paths)):
        assert run(tree) == (0, expected)
        assert all(Path(path).exists() for path in expected)
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {"first", "second", "other", "builds", "go", ".cache"}


def test_two_archives_of_a_kernel_are_unpacked_side_by_side(tmp_path: Path) -> None:
    """And one that changed is unpacked again."""
    (tmp_path / "kernel/modules").mkdir(parents=True)
    linux = tmp_path / "kernel/linux"

    def directory(archive: Path) -> Path:
        environment = {"PATH": SYSTEM, "HOME": str(tmp_path), "MCAGENT_TEST_KERNEL": str(archive)}
        find = ROOT / "tests/kernel/find-kernel"
        done = subprocess.run([find], env=environment, capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())

    def pack(name: str, text: str) -> Path:
        linux.write_text(f"#!/bin/sh\n# {text}\n")
        linux.chmod(0o755)
        archive = tmp_path / name
        subprocess.run(["tar", "-cJf", archive, "-C", tmp_path, "kernel"], check=True)
        return archive

    archives = [pack("first.tar.xz", "first"), pack("second.tar.xz", "second")]
    unpacked = [directory(archive) for archive in archives]
    assert ["first" in (path / "linux").read_text() for path in unpacked] == [True, False]
    assert [directory(archive) for archive in archives] == unpacked
    changed = directory(pack("first.tar.xz", "another first"))
    assert "another first" in (changed / "linux").read_text()
    assert all((path / "linux").exists() for path in unpacked)


PORTS = """
import os, sys
os.getpid = lambda: 7  # they begin at the same place
from devtools.ports import free_port
print(*[free_port() for _ in range(50)], flush=True)
sys.stdin.read()
"""


def test_two_processes_never_get_the_same_port() -> None:
    """While both run, though neither listens; a port is free again when the process has ended."""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PORTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ports(process: subprocess.Popen[str]) -> set[str]:
        assert process.stdout is not None
        return set(process.stdout.readline().split())

    with start() as first, start() as second:
        of_first, of_second = ports(first), ports(second)
        assert len(of_first) == len(of_second) == 50
        assert not of_first & of_second
    with start() as third:
        assert ports(third) & (of_first | of_second)
