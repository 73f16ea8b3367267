"""The base image of the images: the Dockerfile's, or the one that $BASE_IMAGE pins by digest, and no other."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINNED = "registry.example.com/debian:trixie-slim@sha256:" + "0" * 64


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of deploy/image."""
    environment = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": "0", **environment}
    command = [str(ROOT / "deploy/image" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.fixture
def buildah(tmp_path: Path) -> Path:
    """Give a program in the place of buildah that notes its arguments, and cannot get images by digest."""
    program = tmp_path / "buildah"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ncase "$1 $*" in images*@*|pull*@*) exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    return program


def calls(buildah: Path) -> list[str]:
    """Return the arguments of each call."""
    return buildah.with_name("calls").read_text().splitlines()


def test_one_image_is_from_elsewhere() -> None:
    """Each stage is made of an earlier one, of nothing, or of BASE_IMAGE, which has a default."""
    text = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    stages = {"scratch", *re.findall(r"^FROM \S+ AS (\w+)$", text, flags=re.MULTILINE)}
    assert [base for base in bases if base not in stages] == ["${BASE_IMAGE}"]
    assert re.search(r"^ARG BASE_IMAGE=docker\.io/library/debian:\S+$", text, flags=re.MULTILINE)


def test_the_pinned_image_reaches_the_build(buildah: Path) -> None:
    """With $BASE_IMAGE the build gets it; without, the Dockerfile decides."""
    for environment, count in (({"BASE_IMAGE": PINNED}, 1), ({}, 0)):
        buildah.with_name("calls").unlink(missing_ok=True)
        assert run("build", "agent", BUILDER=str(buildah), **environment).returncode == 0
        assert calls(buildah)[-1].count(f"--build-arg BASE_IMAGE={PINNED}") == count


def test_nothing_takes_the_place_of_a_pinned_image(buildah: Path) -> None:
    """An image by digest that no registry gives is an error; the Dockerfile's is looked for under its name."""
    answer = run("base", str(buildah), "amd64", BASE_IMAGE=PINNED)
    assert (answer.returncode, answer.stderr) == (1, f"base: cannot get {PINNED}\n")
    assert calls(buildah) == [f"images -q {PINNED}", f"pull -q --arch amd64 {PINNED}"]
    assert run("base", str(buildah), "amd64").returncode == 0
    assert calls(buildah)[-1] == "images -q docker.io/library/debian:trixie-slim"
