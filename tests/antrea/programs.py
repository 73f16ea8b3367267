"""Antrea's own multicluster-controllers, with their manifests: unpacked, never built or downloaded.

The directory $MCAGENT_ANTREA_MC has `mc-VERSION`, or `mc-VERSION.xz`, and
`manifests-VERSION/antrea-multicluster-{leader,member}.yml`.
"""

from __future__ import annotations

import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

VERSIONS = ("v1.14.3", "v2.4.0")
VARIABLE = "MCAGENT_ANTREA_MC"
HINT = f"set {VARIABLE} to a directory of mc-VERSION and manifests-VERSION (docs/antrea.md)"


def directory() -> Path | None:
    """Return the directory of the programs, None if the environment names none."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


def packed(version: str) -> Path | None:
    """Return the program of a version, packed or not; None if it or its manifests are not there."""
    here = directory()
    if here is None or not (here / f"manifests-{version}").is_dir():
        return None
    programs = (here / name for name in (f"mc-{version}", f"mc-{version}.xz"))
    return next((program for program in programs if program.is_file()), None)


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
    root = directory()
    assert root is not None
    text = (root / f"manifests-{version}/antrea-multicluster-{role}.yml").read_text()
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]
