"""Manifests on the command line that count as if they were applied (`-f`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mcagent.model.errors import SourceError

if TYPE_CHECKING:
    from mcagent.core.snapshot import Upsert


def add_manifests_flag(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the files. `meaning`: of the manifests."""
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help=f"{meaning}: a file, or a directory of these; may be repeated",
    )


def read_files(paths: Iterable[Path], namespace: str = "default") -> Iterator[Upsert]:
    """Yield the objects that agents read. Raises SourceError that names the file."""
    from mcagent.core.snapshot import ATTRIBUTE, Upsert
    from mcagent.kube.sources.manifests import SUFFIXES, read_manifests

    for path in paths:
        files = sorted(entry for entry in path.iterdir() if entry.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            try:
                objects = read_manifests(file, namespace)
            except SourceError as error:
                raise SourceError(f"{file}: {error}") from None
            yield from (Upsert(kind=kind, raw=raw) for kind, raw in objects if kind in ATTRIBUTE)
