"""Make the files of a release from HEAD: `make release`.

A commit with a tag vX.Y.Z is the release X.Y.Z; any other gives a development version, with the commit in its
name. Nothing is published (CONTRIBUTING.md, "Make a release").
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from devtools.release import chart, images, plugin
from devtools.release.tree import ReleaseError, Tree, export, run

ROOT = Path(__file__).parents[2]
SUMS = "SHA256SUMS"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as images name them


def main() -> int:
    """Build; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist/release", help="[%(default)s]")
    own = f"linux/{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
    parser.add_argument("--platforms", default=own, metavar="LIST", help="of the images [%(default)s]")
    parser.add_argument("--without-images", action="store_true", help="build all else")
    parser.add_argument(
        "--store", type=Path, default=ROOT / ".cache/release", help="of images and their layers [%(default)s]"
    )
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix=f"mcagent-release.{os.getpid()}.") as place:
            tree = export(ROOT, Path(place) / "tree")
            tree.require_release()
            platforms = () if args.without_images else tuple(args.platforms.split(","))
            write(args.out, tree, platforms, args.store)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def write(out: Path, tree: Tree, platforms: tuple[str, ...], store: Path) -> None:
    """Write the files, and their checksums, into a directory that has nothing else. Raises ReleaseError."""
    out.mkdir(parents=True, exist_ok=True)
    for file in out.iterdir():
        file.unlink()
    sums = {}
    for name, content in files(tree, platforms, store):
        (out / name).write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
        sys.stdout.write(f"{out / name}  {len(content)} bytes\n")
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    (out / SUMS).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{out / SUMS}\n")


def files(tree: Tree, platforms: tuple[str, ...], store: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a release with their names. Raises ReleaseError."""
    wheel = build_wheel(tree)
    version = wheel.name.split("-")[1]
    if tree.tag not in ("", f"v{version}"):
        raise ReleaseError(f"the tag is {tree.tag}, and the wheel's version {version}: name the tag vX.Y.Z")
    tag = chart.semantic(version)
    sys.stdout.write(f"mcagent {version}{'' if tree.tag else ', a development version: HEAD has no tag vX.Y.Z'}\n")
    yield wheel.name, wheel.read_bytes()
    yield f"mcagent-{tag}.spdx.json", sbom(tree, version)
    archive = chart.package(tree, tag)
    yield f"mcagent-{tag}.tgz", archive
    yield f"mcagent-chart-{tag}.oci.tar", chart.layout(tree, tag, archive)
    lock = (tree.directory / ".ci/requirements.lock").read_bytes()
    yield from plugin.files(version, tag, wheel, lock, tree.time)
    for name in platforms:
        yield from images.build(tree, version, tag, name, store)


def build_wheel(tree: Tree) -> Path:
    """Build the wheel; it is the same on all platforms. Raises ReleaseError."""
    target = tree.directory.with_name("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(tree.time)}
    if tree.development:
        environment["SETUPTOOLS_SCM_PRETEND_VERSION"] = tree.development
    run(command, tree.directory, environment)  # of a tag, hatch-vcs reads .git_archival.txt
    (wheel,) = target.glob("*.whl")
    return wheel


def sbom(tree: Tree, version: str) -> bytes:
    """Return the SPDX document of the wheel with its locked dependencies. Raises ReleaseError."""
    command = [sys.executable, "deploy/image/sbom.py", "--lock", ".ci/requirements.lock", "mcagent", version]
    return run(command, tree.directory, os.environ | {"SOURCE_DATE_EPOCH": str(tree.time)}).encode()


if __name__ == "__main__":
    sys.exit(main())
