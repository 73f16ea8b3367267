"""A test function that disappears is noticed, unless it is listed with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.test_inventory import NAMES, REMOVED, main, read_removed

BEFORE = "def test_a(): ...\nclass TestGroup:\n    def test_b(self): ...\n"


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """Return a directory of tests with its inventory: two functions of one name, and a method."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / NAMES).write_text("")
    (tmp_path / REMOVED).write_text("# removed\n")
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit/test_one.py").write_text(BEFORE)
    (tmp_path / "unit/test_two.py").write_text("def test_a(): ...\ndef helper(): ...\n")
    assert main(["--update"], tmp_path) == 0
    assert (tmp_path / NAMES).read_text() == "test_a 2\ntest_b\n"
    return tmp_path


def test_nothing_is_wrong_with_what_is_listed(tests: Path) -> None:
    """Also when functions move to other files."""
    (tests / "unit/test_one.py").rename(tests / "test_moved.py")
    assert main([], tests) == 0


def test_a_file_that_is_overwritten_is_noticed(tests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The functions that were in it are named, and an update does not forget them."""
    (tests / "unit/test_one.py").write_text("def test_other(): ...\n")
    assert main([], tests) == 1
    assert main(["--update"], tests) == 1
    output = capsys.readouterr().err
    assert "test_a has disappeared" in output
    assert "test_b has disappeared" in output
    assert "test_other is not in" in output.partition("test_b has disappeared")[2]


def test_a_removal_needs_a_reason(tests: Path) -> None:
    """With one, an update takes the function out of the inventory; without one, the list itself is refused."""
    (tests / "unit/test_one.py").write_text("def test_a(): ...\n")
    (tests / REMOVED).write_text("test_b: the feature was removed\n")
    assert main([], tests) == 0
    assert main(["--update"], tests) == 0
    assert (tests / NAMES).read_text() == "test_a 2\n"
    with pytest.raises(ValueError, match="gives no reason"):
        read_removed("test_b:\n")
