"""The tutorials and troubleshooting: each command prints what the page says, one after the other in one lab."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.lab import state
from devtools.lab.lab import Lab
from mcagent.model.dataplane.facts import DatapathType
from tests.pages import Command, Reader
from tests.worlds.labs import fresh_name

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytestmark = [
    pytest.mark.datapath,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="the tutorials need kubectl"),
    pytest.mark.timeout(900),  # some ninety commands: a minute and a half where nobody else is at work
]


def text_of(page: str) -> str:
    """Return a page's text."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


@contextlib.contextmanager
def beginner(directory: Path) -> Iterator[Reader]:
    """Give somebody who has no lab yet; the one that they make is taken down."""
    lab = Lab(fresh_name())
    reader = Reader(directory, ROOT, {**os.environ, "MCLAB_NAME": lab.name, state.OWNER: str(os.getpid())})
    try:
        yield reader
    finally:
        reader.close()
        lab.down()


@pytest.fixture(scope="module")
def reader(datapath: DatapathType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the quick start: its lab runs."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the pages are the same on any datapath")
    with beginner(tmp_path_factory.mktemp("reader")) as reader:
        reader.follow(text_of("tutorials/quick-start"))
        yield reader


@pytest.mark.parametrize(
    "page", ["tutorials/first-service", "tutorials/gateways", "tutorials/policies", "troubleshooting"]
)
def test_the_page_is_true(reader: Reader, page: str) -> None:
    """What the page says that a command prints is what it prints."""
    reader.follow(text_of(page))


def test_the_page_about_encryption_is_true(datapath: DatapathType, tmp_path: Path) -> None:
    """In the lab of its `make lab-shell`, which is this one inside a test kernel."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    page = text_of("tutorials/encryption")
    (arguments,) = re.findall(r'^make lab-shell LAB="(.*)"$', page, flags=re.MULTILINE)
    with beginner(tmp_path) as somebody:
        up = f"devtools/mclab up --datapath system {arguments}"
        shown = somebody.type(Command(where="", text=up, output=()))
        assert "mclab status" in shown, shown
        somebody.follow(page, patience=60.0)
