"""Container images without a registry: archives as `docker save` writes them, which `ctr images import` reads.

Owns the format (Docker Image Specification v1.2): one layer of files given by their path in the image. Knows no
containers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from devtools.errors import LabError
from devtools.nodes import netns

PAUSE = "registry.k8s.io/pause:3.10"
WEB = "docker.io/mcagent-test/web:1"
COREDNS = "docker.io/mcagent-test/coredns:1"
FLANNEL = "docker.io/mcagent-test/flannel:1"
KUBE_ROUTER = "docker.io/mcagent-test/kube-router:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go names them


def write_archive(path: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str]) -> None:
    """Write the archive of an image; `files`: what it holds, by absolute path. Equal files give equal bytes."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as content:
        for place, source in sorted(files.items()):
            content.add(source, arcname=place.lstrip("/"), filter=_plain)
    with layer.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "devtools.k8s.images"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        archive.add(layer, arcname="layer.tar", filter=_plain)
        for member, value in (("config.json", config), ("manifest.json", manifest)):
            text = json.dumps(value).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    layer.unlink()


def with_libraries(program: Path) -> dict[str, Path]:
    """Return the shared libraries of a program of this machine, by their path (ldd(1)). Raises LabError."""
    libraries = re.findall(r"(?:=> )?(/\S+) \(0x", netns.run(["ldd", str(program)]).stdout)
    return {place: Path(place).resolve() for place in libraries}


def tools(*names: str) -> dict[str, Path]:
    """Return programs of this machine with their libraries, for an image. Raises LabError."""
    files: dict[str, Path] = {}
    for name in names:
        files[f"/usr/sbin/{name}"] = program = _program(name)
        files |= with_libraries(program)
    return files


def iptables() -> dict[str, Path]:
    """Return this machine's iptables with its libraries and extensions, for an image."""
    program = _program("iptables")
    names = [f"{tool}{suffix}" for tool in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")]
    extensions = next(Path("/usr/lib").glob("*/xtables"))
    files = {f"/usr/sbin/{name}": program for name in names}
    return {**files, **with_libraries(program), str(extensions): extensions}


def _program(name: str) -> Path:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    if (place := shutil.which(name, path=path)) is None:
        raise LabError(f"not on this machine: {name}")
    return Path(place).resolve()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
