"""The images of a release, built without a daemon: by buildah, through deploy/image/build.

Each platform has a store of its own, because a base image has the same name on all of them. Where no registry can
be reached, deploy/image/base makes the base image of Debian's packages. A platform of another architecture needs
its emulator (packages qemu-user-static, binfmt-support, arch-test).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from devtools.release.archives import file_of_image, image_archive
from devtools.release.tree import ReleaseError, Tree, run

TARGETS = {"agent": "mcagent", "openvswitch": "mcagent-openvswitch"}  # of the Dockerfile, with the images' names
SBOM = "usr/share/mcagent/sbom.spdx.json"
# chroot: builds inside of containers, too. The machine's certificates: networks with an authority of their own.
FLAGS = "--isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"


def build(tree: Tree, version: str, tag: str, platform: str, store: Path) -> Iterator[tuple[str, bytes]]:
    """Build the images of a platform, OS/ARCHITECTURE; yield names and contents of files. Raises ReleaseError."""
    system, _, architecture = platform.partition("/")
    if system != "linux" or not architecture.isalnum():
        raise ReleaseError(f'platform "{platform}": must be linux/ARCHITECTURE, such as linux/arm64')
    program = shutil.which("buildah")
    if program is None:
        raise ReleaseError("images need buildah (Debian package buildah); --without-images makes the rest")
    place = store / architecture
    buildah = place / "buildah"
    place.mkdir(parents=True, exist_ok=True)
    buildah.write_text(
        "#!/bin/sh\n"
        f'exec {program} --storage-driver overlay --root "{place}/store" --runroot "{place}/run" "$@"\n',
        encoding="utf-8",
    )
    buildah.chmod(0o755)
    environment = os.environ | {
        "BUILDER": str(buildah),
        "BUILD_FLAGS": f"{FLAGS} --platform {platform}",
        "SOURCE_DATE_EPOCH": str(tree.time),
        "VERSION": version,
    }
    scripts = tree.directory / "deploy/image"
    run([str(scripts / "base"), str(buildah), architecture], tree.directory, environment)
    for target, name in TARGETS.items():
        reference = f"localhost/{name}:{tag}"
        names = {"IMAGE": reference, "OPENVSWITCH_IMAGE": reference}
        run([str(scripts / "build"), target], tree.directory, environment | names)
        layout = place / f"{target}.oci"
        shutil.rmtree(layout, ignore_errors=True)
        run([str(buildah), "push", "-q", reference, f"oci:{layout}:{tag}"], tree.directory)
        file = f"{name}-{tag}-{system}-{architecture}"
        yield f"{file}.tar", image_archive(layout, name, tag, tree.time)
        yield f"{file}.spdx.json", file_of_image(layout, SBOM)
