"""Tests that verify nothing but the API servers for tests run only when these have changed.

They have the marker `apiserver`. When a run of whole suites passes, `.cache/apiserver` gets a digest for each of
their files: of `SOURCES`, the file, and the helpers beside it. While it stays the same, runs of whole suites leave
the file's tests out and say so. A clean clone has no digests and runs them, and so does a run that names the file.
`tests/conftest.py` registers the plugin. It must not know any suite.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MARKER = "apiserver"
SOURCES = (
    "devtools/apiserver",
    "devtools/realapi",
    "tests/worlds/apiservers.py",
    "tests/kube/access.py",
    "tests/kube/apiserver",
    "tests/kube/build-apiserver",
)
"""What these tests verify and what they run with, real programs included."""
RECORDS = ".cache/apiserver"
LEFT_OUT = "apiserver_left_out"
PLUGIN = "mcagent-unchanged-tests"
REASON = "verifies an API server for tests that has not changed since"
_SELECTING = ("keyword", "markexpr", "lf", "deselect", "ignore", "collectonly")


@cache
def files_digest(root: Path, paths: tuple[Path, ...]) -> str:
    """Return the digest of files, and of all files in directories, but for compiled modules."""
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    hashed = hashlib.sha256()
    for file in sorted(files):
        if file.suffix != ".pyc":
            hashed.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return hashed.hexdigest()


def digest(root: Path, file: str) -> str:
    """Return the digest of what the result of a test file depends on."""
    helpers = [path for path in (root / file).parent.glob("*.py") if not path.name.startswith("test_")]
    sources = files_digest(root, tuple(root / source for source in SOURCES))
    return f"{sources} {files_digest(root, (root / file, *sorted(helpers)))}"


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def record(root: Path, file: str) -> Path:
    """Return where the digest of a test file is kept."""
    return root / RECORDS / file.replace("/", "-")


class Unchanged:
    """Leaves tests out, and records those that passed. In processes of xdist it only leaves out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = config.rootpath
        self._whole = (
            all(Path(config.invocation_params.dir, arg).is_dir() for arg in config.args)
            and not any(config.getoption(name, None) for name in _SELECTING)
            and not os.environ.get("MCAGENT_TEST_KUBECONFIG")
        )
        self.left_out = 0
        self._passed: set[str] = set()
        self._others: set[str] = set()  # files with a test that failed or was skipped

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave tests out whose file has the digest with which it passed."""
        if not self._whole:
            return
        marked = {file_of(item.nodeid) for item in items if item.get_closest_marker(MARKER)}
        unchanged = {file for file in marked if self._unchanged(file)}
        removed = [item for item in items if file_of(item.nodeid) in unchanged]
        items[:] = [item for item in items if file_of(item.nodeid) not in unchanged]
        config.hook.pytest_deselected(items=removed)
        self.left_out = len(removed)
        if hasattr(config, "workeroutput"):
            config.workeroutput[LEFT_OUT] = len(removed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a process of xdist how many tests it left out: each collects all."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get(LEFT_OUT, 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which files pass."""
        if MARKER in report.keywords:
            (self._passed if report.passed else self._others).add(file_of(report.nodeid))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record the files all of whose tests passed in a run that passes."""
        if exitstatus != pytest.ExitCode.OK or not self._whole or hasattr(self._config, "workerinput"):
            return
        for file in self._passed - self._others:
            path = record(self._root, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(digest(self._root, file))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests were left out, and why."""
        if self.left_out:
            terminalreporter.write_line(
                f"LEFT OUT: {self.left_out} tests of API servers for tests: neither they nor {SOURCES[0]} and "
                f"{SOURCES[1]} have changed since they passed (to run them, name a file or remove {RECORDS})"
            )

    def _unchanged(self, file: str) -> bool:
        path = record(self._root, file)
        return path.is_file() and path.read_text() == digest(self._root, file)


def left_out(config: pytest.Config) -> int:
    """Return how many tests the plugin left out."""
    plugin = config.pluginmanager.get_plugin(PLUGIN)
    return plugin.left_out if isinstance(plugin, Unchanged) else 0


def register(config: pytest.Config) -> None:
    """Add the plugin to the process that reports results, and to those of xdist, which collect."""
    config.pluginmanager.register(Unchanged(config), PLUGIN)
