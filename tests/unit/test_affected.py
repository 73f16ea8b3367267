"""Each path of the product has tests of the second tier, and the table names what exists (`tests/affected.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import affected, suites

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("area", affected.AREAS, ids=lambda area: area.paths[0])
def test_an_area_names_what_exists(area: affected.Area) -> None:
    """Its paths, suites and files; and it has at least one of these."""
    for path in area.paths:
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*")), path
    assert set(area.suites) <= set(suites.BY_NAME)
    assert all((ROOT / file).is_file() for file in (*area.files, *area.kernel))
    assert all("mark.datapath" in (ROOT / file).read_text() for file in area.kernel)
    assert area.suites or area.files or area.kernel


def test_each_package_of_the_product_is_covered() -> None:
    """A change of any module of mcagent and flows has tests, but for the version in mcagent itself."""
    modules = {
        path.relative_to(ROOT).as_posix() for name in ("mcagent", "flows") for path in (ROOT / name).rglob("*.py")
    }
    assert len(modules) > 100
    assert {module for module in modules if not affected.areas([module])} <= {"mcagent/__init__.py"}


def test_a_change_of_failover_runs_its_rows() -> None:
    """Times, and the short rows on both datapaths; a page that nothing tests runs nothing."""
    areas = [area for area, _ in affected.areas(["mcagent/core/failover/silence.py", "README.md"])]
    chosen = {part.name: part for part in affected.parts(areas)}
    assert {"timing", "planned", "lab", "files", "kernel"} == set(chosen)
    files = chosen["files"]
    assert isinstance(files, suites.Suite)
    assert "tests/lab/test_failover_short.py" in files.select
    assert affected.areas(["README.md"]) == []


def test_a_changed_file_of_tests_runs() -> None:
    """On the kernel datapath, too, if it has the marker; a file that was removed does not run."""
    paths = ["tests/lab/test_sizes.py", "tests/lab/test_silent_peer.py", "tests/lab/test_removed.py"]
    areas = [area for area, _ in affected.areas(paths)]
    files, _ = affected.parts(areas)
    assert isinstance(files, suites.Suite)
    assert files.select == ("-m", "not failover", "tests/lab/test_silent_peer.py", "tests/lab/test_sizes.py")
    assert [area.kernel for area in areas] == [(), ("tests/lab/test_sizes.py",)]
