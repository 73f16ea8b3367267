"""Where kube-apiserver and etcd are looked for, by mcagent and by the tests' script; keys and certificates."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.lab import certificates
from devtools.realapi import Binaries, RealApiServer
from devtools.realapi.binaries import cache_directory, find

SCRIPT = Path(__file__).parents[1] / "kube" / "find-apiserver"
PROGRAMS = ("kube-apiserver", "etcd", "kube-controller-manager")


def put(directory: Path, *names: str) -> Path:
    """Make programs of these names in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def both(environment: dict[str, str]) -> list[str]:
    """Return what `find` and the script find; they must agree."""
    programs = find(environment)
    paths = [programs.kube_apiserver, programs.etcd, programs.kube_controller_manager] if programs else []
    paths_found = [str(path) for path in paths if path is not None]
    result = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == paths_found
    assert (result.returncode == 0) == bool(paths_found)
    return paths_found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Give an environment with the tools of the script, but without any API server."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "readlink", "sha256sum", "cut", "cat", "env", "sed", "sort", "touch"):
        (tools / name).symlink_to(str(shutil.which(name)))
    return {"PATH": str(tools), "HOME": str(tmp_path / "home")}


def test_nothing_is_found_where_nothing_is(environment: dict[str, str]) -> None:
    """No programs: none found, and one alone is none."""
    assert both(environment) == []
    put(Path(environment["PATH"]), "etcd")
    assert both(environment) == []


def test_the_order_of_the_places(environment: dict[str, str], tmp_path: Path) -> None:
    """KUBEBUILDER_ASSETS comes before PATH; envtest's has no kube-controller-manager."""
    path = put(tmp_path / "path", *PROGRAMS)
    environment["PATH"] += f":{path}"
    assert both(environment) == [str(path / name) for name in PROGRAMS]
    assets = put(tmp_path / "assets", *PROGRAMS[:2])
    environment["KUBEBUILDER_ASSETS"] = str(assets)
    assert both(environment) == [str(assets / name) for name in PROGRAMS[:2]]


def test_assets_that_were_meant_must_be_there(environment: dict[str, str], tmp_path: Path) -> None:
    """A KUBEBUILDER_ASSETS without the programs is an error, even where others could be found."""
    environment["PATH"] += f":{put(tmp_path / 'path', *PROGRAMS)}"
    environment["KUBEBUILDER_ASSETS"] = str(tmp_path)
    with pytest.raises(LabError, match="no kube-apiserver and etcd in that directory"):
        find(environment)
    assert subprocess.run([SCRIPT], env=environment, capture_output=True, check=False).returncode == 1


def test_the_cache_is_the_last_place(environment: dict[str, str], tmp_path: Path) -> None:
    """What was built from this tree is found in the cache, wherever that is; another revision's is not."""
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path / "xdg")}
    for base, variables in ((tmp_path / "home" / ".cache", {}), (tmp_path / "xdg", elsewhere)):
        put(base / "mcagent" / "kubernetes" / "0123456789abcdef", *PROGRAMS)
        assert both(environment | variables) == []
        built = put(cache_directory(environment | variables), *PROGRAMS)
        assert built.parent == base / "mcagent" / "kubernetes"
        assert both(environment | variables) == [str(built / name) for name in PROGRAMS]


def test_without_go_nothing_is_built(environment: dict[str, str]) -> None:
    """--build without a Go toolchain says what is needed and ends with status 1, not 2: it is no failed build."""
    result = subprocess.run([SCRIPT, "--build"], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "takes Go 1." in result.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_an_identity_is_made_once(tmp_path: Path) -> None:
    """A server that starts again has the same certificate; its key is for its owner only."""
    first = certificates.server_identity(tmp_path / "pki", ["127.0.0.1", "localhost"])
    text = first.certificate.read_bytes()
    assert certificates.server_identity(tmp_path / "pki", ["127.0.0.1", "localhost"]) == first
    assert first.certificate.read_bytes() == text
    assert first.key.stat().st_mode & 0o077 == 0
    context = ssl.create_default_context(cafile=str(first.ca))
    assert len(context.get_ca_certs()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pki"]


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    """etcd listens on a socket in the directory, whose path the kernel limits."""
    directory = tmp_path / ("x" * 90)
    programs = Binaries(kube_apiserver=tmp_path / "none", etcd=tmp_path / "none")
    with pytest.raises(LabError, match="too long a path for a socket"):
        RealApiServer(directory, binaries=programs).start()


FAKE_GO = """#!/bin/bash
# Stands for the Go toolchain: "builds" programs that print more lines than anybody reads.
[ "$1" != env ] || echo go9.99
[ "$1" = build ] || exit 0
while [ "$1" != -o ]; do shift; done
printf '#!/bin/bash\\nfor i in {1..20000}; do echo line $i; done\\n' >"$2"
chmod +x "$2"
"""
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.skipif(shutil.which("etcd", path=SYSTEM) is not None, reason="the machine has an etcd of its own")
def test_what_was_built_is_kept(tmp_path: Path) -> None:
    """A build goes into the cache in one step; the second call builds nothing; nothing is left in between.

    Versions of other revisions go when nothing has used them for a month.
    """
    go = put(tmp_path / "go", "go")
    (go / "go").write_text(FAKE_GO)
    cache = tmp_path / "xdg" / "mcagent" / "kubernetes"
    others = old, recent, undated = [put(cache / (digit * 16), *PROGRAMS) for digit in "abc"]
    for version, days in ((old, 32), (recent, 28)):
        (version / ".used").touch()
        os.utime(version / ".used", (time.time() - days * 86400,) * 2)
    os.utime(undated, (0, 0))  # an older revision made it
    environment = {"PATH": f"{go}:{SYSTEM}", "XDG_CACHE_HOME": str(tmp_path / "xdg"), "TMPDIR": str(tmp_path)}
    results = [
        subprocess.run([SCRIPT, "--build"], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert "compiling etcd" in results[0].stderr
    assert results[1].stderr == ""
    assert results[0].stdout == results[1].stdout
    programs = find({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert programs is not None
    assert str(programs.etcd.resolve()) in results[0].stdout
    assert [version.exists() for version in others] == [False, True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["go", "xdg"]
