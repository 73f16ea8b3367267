"""Where the programs of real Nodes are. It looks; `devtools/k8s/find-programs --build` builds what is not there.

Looked for in this order: the directory $MCAGENT_K8S_PROGRAMS, then the cache that find-programs fills.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devtools.errors import LabError

BUILT = (
    "kubelet", "kube-proxy", "kube-scheduler", "kubectl", "coredns", "flanneld", "kube-router", "pause", "web",
)  # fmt: skip
# Of Debian packages that `devtools/k8s/setup` installs.
INSTALLED = ("containerd", "ctr", "runc", "nsenter", "unshare", "iptables", "nft", "conntrack", "ipset")
CNI_PLUGINS = Path("/usr/lib/cni")
HINT = "devtools/mck8s setup installs and builds it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Paths of what was built, by name."""

    directory: Path

    def __getitem__(self, name: str) -> Path:
        return (self.directory / name).resolve()


@functools.cache
def _directory() -> Path:
    """Return the directory of the programs of this tree, one that does not exist if there are none."""
    search = subprocess.run(
        [Path(__file__).with_name("find-programs")], capture_output=True, text=True, check=False
    )
    return Path(search.stdout.strip() or "/nonexistent")


def require() -> Programs:
    """Return the programs. Raises LabError that names everything that is missing."""
    directory = _directory()
    missing = [name for name in BUILT if not os.access(directory / name, os.X_OK)]
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing += [name for name in INSTALLED if shutil.which(name, path=path) is None]
    missing += [f"CNI plugin {name}" for name in ("bridge", "host-local") if not (CNI_PLUGINS / name).exists()]
    if missing:
        raise LabError(f"not on this machine: {', '.join(missing)}; {HINT}")
    return Programs(directory=directory)


def mcagent_images() -> tuple[str, ...]:
    """Return the archives of mcagent's images, of this tree: the agent's, and Open vSwitch's. Raises LabError."""
    finder = Path(__file__).with_name("find-image")
    search = subprocess.run([finder], capture_output=True, text=True, check=False)
    if search.returncode:
        raise LabError(f"no images of mcagent of this tree; {HINT}")
    return tuple(search.stdout.split())
