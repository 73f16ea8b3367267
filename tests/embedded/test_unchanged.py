"""Tests of the API servers for tests run only when these have changed (`tests/unchanged.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATION = f"""[tool.pytest.ini_options]
pythonpath = [{str(ROOT)!r}]
addopts = ["-p", "no:hypothesispytest"]  # its import takes a third of a run
markers = ["apiserver: verifies nothing but an API server for tests"]
"""
CONFTEST = "from tests import unchanged\n\n\ndef pytest_configure(config):\n    unchanged.register(config)\n"
MARKED = "import pytest\n\npytestmark = pytest.mark.apiserver\n\n\ndef test_server():\n    pass\n"
OTHERS = "def test_product():\n    pass\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Give a directory with a server and a suite of two files."""
    for name, text in (
        ("pyproject.toml", CONFIGURATION),
        ("conftest.py", CONFTEST),
        ("devtools/apiserver/server.py", "version = 1\n"),
        ("suite/test_server.py", MARKED),
        ("suite/test_product.py", OTHERS),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(directory: Path, *arguments: str) -> str:
    """Run pytest and return what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *(arguments or ("suite",))],
        cwd=directory,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_unchanged_tests_are_left_out_and_named(suite: Path, processes: str) -> None:
    """The first run has all tests; the second leaves out those of the server and says why."""
    assert "2 passed" in run(suite, processes, "suite")
    second = run(suite, processes, "suite")
    assert "1 passed" in second
    assert "LEFT OUT: 1 tests" in second
    assert "devtools/apiserver" in second


@pytest.mark.parametrize("file", ["devtools/apiserver/server.py", "suite/test_server.py", "suite/helper.py"])
def test_a_change_runs_them_again(suite: Path, file: str) -> None:
    """A change of the server, of the tests or of a helper beside them."""
    run(suite)
    with (suite / file).open("a") as changed:
        changed.write("# changed\n")
    assert "2 passed" in run(suite)


def test_a_run_that_names_the_file_has_them(suite: Path) -> None:
    """Who names a file wants its tests."""
    run(suite)
    assert "1 passed" in run(suite, "suite/test_server.py")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("suite/test_server.py", "def test_fails():\n    assert False\n"),
        ("suite/test_server.py", "def test_is_skipped():\n    pytest.skip('no server')\n"),
        ("suite/test_product.py", "def test_fails():\n    assert False\n"),
    ],
)
def test_what_did_not_pass_runs_again(suite: Path, file: str, line: str) -> None:
    """A failed or skipped test of the file, or a failed run, records nothing."""
    with (suite / file).open("a") as changed:
        changed.write(line)
    run(suite)
    assert "LEFT OUT" not in run(suite)


@pytest.mark.parametrize("selection", [("-k", "server"), ("suite/test_server.py",)])
def test_a_selection_records_nothing(suite: Path, selection: tuple[str, ...]) -> None:
    """Only a run of a whole suite shows that a whole file passes."""
    run(suite, *selection, *(() if "suite" in selection[0] else ("suite",)))
    assert "2 passed" in run(suite)
