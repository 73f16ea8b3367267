"""Antrea's own multicluster-controllers, with their manifests: found, unpacked, never built or downloaded.

Looked for in $MCAGENT_ANTREA_MC, else in ../shared/interop beside the repository: `mc-VERSION`, or
`mc-VERSION.xz`, and `manifests-VERSION/antrea-multicluster-{leader,member}.yml`.
"""

from __future__ import annotations

import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

VERSIONS = ("v1.14.3", "v2.4.0")
HINT = "set MCAGENT_ANTREA_MC to a directory of mc-VERSION and manifests-VERSION"
_REPOSITORY = Path(__file__).parents[2]


def directory() -> Path:
    """Return where the programs should be."""
    found = os.environ.get("MCAGENT_ANTREA_MC")
    return Path(found) if found else _REPOSITORY.parent / "shared/interop"


def packed(version: str) -> Path | None:
    """Return the program of a version, packed or not; None if it or its manifests are not there."""
    here = directory()
    found = [file for name in (f"mc-{version}", f"mc-{version}.xz") if (file := here / name).is_file()]
    return found[0] if found and (here / f"manifests-{version}").is_dir() else None


def unpack(version: str, to: Path) -> Path:
    """Return the program, unpacked into a directory if it is packed."""
    file = packed(version)
    assert file is not None
    if file.suffix != ".xz":
        return file
    program = to / f"mc-{version}"
    with lzma.open(file) as source, program.open("wb") as target:
        shutil.copyfileobj(source, target)
    program.chmod(0o755)
    return program


def manifests(version: str, role: str) -> list[dict[str, Any]]:
    """Return what the project publishes for a role."""
    text = (directory() / f"manifests-{version}/antrea-multicluster-{role}.yml").read_text()
    return [found for found in yaml.safe_load_all(text) if found]
