"""The commit that is released, as a tree of its own.

Owns what git says of it. What is not committed is in no release. Knows nothing of what is made from the tree.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from mcagent.model.errors import McagentError

CHART = Path("deploy/helm/mcagent")
_COUNT = ("rev-list", "--count", "HEAD")
_COMMIT = ("rev-parse", "--short", "HEAD")


class ReleaseError(McagentError):
    """Something cannot be released, or a program for it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A commit: where its files are, its time in seconds since 1970, its tag of a version (or "").

    `development`: its version where it has no tag, such as 0.1.0.dev1129+g4420b3dd2; else "".
    """

    directory: Path
    time: int
    tag: str
    development: str

    @property
    def chart_version(self) -> str:
        """Return the version that chart and manifests have in the tree: of this release, or of the next one."""
        chart = yaml.safe_load((self.directory / CHART / "Chart.yaml").read_text(encoding="utf-8"))
        return str(chart["appVersion"])

    def require_release(self) -> None:
        """Raise ReleaseError where a tag, the chart and the changelog do not name the same version."""
        version = self.tag.removeprefix("v")
        if version and self.chart_version != version:
            raise ReleaseError(
                f"{CHART / 'Chart.yaml'}: appVersion is {self.chart_version}, and the tag is {self.tag}: set "
                "version and appVersion, run deploy/generate, and tag that commit"
            )
        changelog = (self.directory / "CHANGELOG.md").read_text(encoding="utf-8")
        heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$"
        if version and not re.search(heading, changelog, flags=re.MULTILINE):
            raise ReleaseError(f'CHANGELOG.md: has no section "## [{version}] - YYYY-MM-DD"')


def export(repository: Path, directory: Path) -> Tree:
    """Write the files of HEAD of a repository below a directory. Raises ReleaseError."""
    archive = directory.with_suffix(".tar")
    run(["git", "archive", "--format=tar", f"--output={archive}", "HEAD"], repository)
    with tarfile.open(archive) as content:
        content.extractall(directory, filter="data")
    archive.unlink()
    time = int(run(["git", "log", "-1", "--format=%ct"], repository))
    tags = run(["git", "tag", "--points-at", "HEAD", "v[0-9]*"], repository).split()
    if len(tags) > 1:
        raise ReleaseError(f"HEAD has several tags of versions: {', '.join(tags)}")
    tree = Tree(directory=directory, time=time, tag="".join(tags), development="")
    if tags:
        return tree
    number, commit = (run(["git", *words], repository).strip() for words in (_COUNT, _COMMIT))
    return replace(tree, development=f"{tree.chart_version}.dev{number}+g{commit}")


def run(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program; return what it prints. Raises ReleaseError with its error text."""
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr or done.stdout}")
    return done.stdout
