"""The tutorials and troubleshooting: each command prints what the page says, one after the other in one lab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.lab.lab import Lab
from mcagent.model.facts import DatapathType
from tests.labs import fresh_name
from tests.pages import Reader

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="the tutorials need kubectl"),
    pytest.mark.timeout(900),  # some ninety commands: a minute and a half where nobody else is at work
]


@pytest.fixture(scope="module")
def reader(datapath: DatapathType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the quick start: its lab runs."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the pages are the same on any datapath")
    lab = Lab(fresh_name())
    environment = {**os.environ, "MCLAB_NAME": lab.name}
    made = Reader(tmp_path_factory.mktemp("reader"), ROOT, environment)
    try:
        made.follow((DOCS / "tutorials/quick-start.md").read_text(encoding="utf-8"))
        yield made
    finally:
        made.close()
        lab.down()


@pytest.mark.parametrize(
    "page", ["tutorials/first-service", "tutorials/gateways", "tutorials/policies", "troubleshooting"]
)
def test_the_page_is_true(reader: Reader, page: str) -> None:
    """What the page says that a command prints is what it prints."""
    reader.follow((DOCS / f"{page}.md").read_text(encoding="utf-8"))
