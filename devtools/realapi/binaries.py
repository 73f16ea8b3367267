"""Where the programs of a real control plane are. It looks; it never builds or downloads.

Looked for in this order, always kube-apiserver and etcd together: the directory $KUBEBUILDER_ASSETS (as
controller-runtime's envtest has it), $PATH, the cache that tests/kube/find-apiserver fills.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devtools.errors import LabError

_TESTS = Path(__file__).resolve().parents[2] / "tests" / "kube"
HINT = "set KUBEBUILDER_ASSETS, or run tests/kube/find-apiserver --build in the repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Paths of the programs. envtest's assets have no kube-controller-manager."""

    kube_apiserver: Path
    etcd: Path
    kube_controller_manager: Path | None = None


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory in which find-apiserver keeps what it builds from this tree."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "/root") / ".cache")
    module = _TESTS / "apiserver"
    sources = (module / "go.mod", module / "go.sum", *sorted(module.glob("*/main.go")), _TESTS / "build-apiserver")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return Path(base) / "mcagent" / "kubernetes" / digest[:16]


def find(environment: Mapping[str, str] = os.environ) -> Binaries | None:
    """Return the programs, None where they are not.

    Raises LabError when KUBEBUILDER_ASSETS names a directory without them: it was meant, so nothing else is taken.
    """
    if assets := environment.get("KUBEBUILDER_ASSETS"):
        binaries = _in(assets)
        if binaries is None:
            raise LabError(f"KUBEBUILDER_ASSETS={assets}: no kube-apiserver and etcd in that directory")
        return binaries
    return _in(environment.get("PATH", os.defpath)) or _in(str(cache_directory(environment)))


def require() -> Binaries:
    """Return the programs. Raises LabError that says how to get them."""
    binaries = find()
    if binaries is None:
        raise LabError(f"no kube-apiserver and etcd on this machine: {HINT}")
    return binaries


def _in(path: str) -> Binaries | None:
    """Look in a directory, or in several as $PATH names them."""
    paths = {name: shutil.which(name, path=path) for name in ("kube-apiserver", "etcd", "kube-controller-manager")}
    server, etcd, manager = (Path(program) if program else None for program in paths.values())
    if server is None or etcd is None:
        return None
    return Binaries(kube_apiserver=server, etcd=etcd, kube_controller_manager=manager)
