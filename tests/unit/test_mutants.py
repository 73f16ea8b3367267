"""What mutation testing makes of mutmut's results: the sample, the equivalent mutants, the table."""

from __future__ import annotations

import json
import random
import tomllib
from argparse import ArgumentTypeError
from fnmatch import fnmatch
from pathlib import Path

import pytest

from devtools import mutants
from devtools.mutants import Mutant

ADDRESSES = "mcagent/core/addresses/plan.py"
CORE = "mcagent/core/compile.py"
DIFF = "# name: survived\n--- a\n+++ b\n@@ -1 +1 @@\n def f():\n-    return 1\n+    return 2\n"


def mutant(number: int, path: str = CORE, exit_code: int | None = None) -> Mutant:
    """Return one of many mutants of a function."""
    module = path.removesuffix(".py").replace("/", ".")
    return Mutant(name=f"{module}.x_f__mutmut_{number}", path=path, exit_code=exit_code)


def test_results_are_read_from_all_modules(tmp_path: Path) -> None:
    """A module's file has the exit code of each of its mutants."""
    folder = tmp_path / "mcagent/core"
    folder.mkdir(parents=True)
    (folder / "a.py.meta").write_text(json.dumps({"exit_code_by_key": {"mcagent.core.a.x_f__mutmut_1": 1}}))
    (folder / "b.py.meta").write_text(json.dumps({"exit_code_by_key": {"mcagent.core.b.x_g__mutmut_1": None}}))
    read = mutants.read(tmp_path)
    assert [(m.path, m.exit_code, m.package) for m in read] == [
        ("mcagent/core/a.py", 1, "mcagent/core"),
        ("mcagent/core/b.py", None, "mcagent/core"),
    ]


def test_packages_have_the_same_share_of_a_sample() -> None:
    """A small package is not crowded out by a large one, and what was tried is not tried again."""
    all_mutants = (
        [mutant(n) for n in range(100)] + [mutant(n, ADDRESSES) for n in range(3)] + [mutant(200, exit_code=1)]
    )
    drawn = mutants.sample(all_mutants, random.Random(1))
    assert len(drawn) == 103
    assert {m.path for m in drawn[:2]} == {CORE, ADDRESSES}
    assert sum(m.path == ADDRESSES for m in drawn[:6]) == 3
    assert drawn == mutants.sample(all_mutants, random.Random(1))
    assert drawn != mutants.sample(all_mutants, random.Random(2))


def test_a_fixed_sample_depends_on_the_seed_only() -> None:
    """Neither the order of the mutants nor results of earlier runs change it; a small package is tried whole."""
    all_mutants = [mutant(n) for n in range(100)]
    drawn = mutants.fixed_sample(all_mutants, 30, 1)
    assert len({m.name for m in drawn}) == 30
    tried = [mutant(n, exit_code=1) for n in reversed(range(100))]
    assert [m.name for m in mutants.fixed_sample(tried, 30, 1)] == [m.name for m in drawn]
    assert {m.name for m in mutants.fixed_sample(all_mutants, 30, 2)} != {m.name for m in drawn}
    assert len(mutants.fixed_sample(all_mutants[:7], 30, 1)) == 7


@pytest.mark.parametrize("package", mutants.TARGETS)
def test_a_package_is_measured_by_itself(package: str) -> None:
    """Each pattern of its tests is that of a file, and files that another package counts are left out."""
    for pattern in mutants.TESTS[package].split():
        assert mutants.test_files(pattern), pattern
    settings = mutants.settings_for(package)
    mutated, left_out = settings["only_mutate"], settings["do_not_mutate"]
    assert isinstance(mutated, list)
    assert isinstance(left_out, list)
    sources = [path for top in ("flows", "mcagent") for path in mutants.ROOT.glob(f"{top}/**/*.py")]
    files = [str(path.relative_to(mutants.ROOT)) for path in sources]
    chosen = [
        file
        for file in files
        if any(fnmatch(file, pattern) for pattern in mutated)
        and not any(fnmatch(file, pattern) for pattern in left_out)
    ]
    assert chosen
    assert {mutant(1, file).package for file in chosen} == {package}


def test_every_file_that_is_mutated_belongs_to_a_package() -> None:
    """By the settings of the project: a mutant without a package has no target."""
    project = tomllib.loads((mutants.ROOT / "pyproject.toml").read_text())
    for pattern in project["tool"]["mutmut"]["only_mutate"]:
        files = list(mutants.ROOT.glob(pattern.replace("*", "**/*.py")))
        assert files, pattern
        for file in files:
            assert mutant(1, str(file.relative_to(mutants.ROOT))).package


def test_scores_leave_out_equivalent_mutants() -> None:
    """Of five that were tried two live, and one of these two has a reason."""
    made = [mutant(n, exit_code=code) for n, code in enumerate((1, 1, 36, 0, 33, None, 34))]
    other = DIFF.replace("return 2", "return 3")
    excused = {"mcagent.core.compile.f || return 1 || return 3": "nobody reads it"}
    diffs = {made[3].name: DIFF, made[4].name: other}
    score = next(s for s in mutants.scores(made, excused, diffs) if s.package == "mcagent/core")
    assert (score.made, score.tried, score.equivalent, score.alive) == (7, 5, 1, (made[3].name,))
    assert score.percent == 75.0
    assert "| `mcagent/core` | 7 | 5 | 1 | 75.0 % | 85 % |" in mutants.table([score])


def test_an_entry_of_the_list_needs_a_reason() -> None:
    """Comments and empty lines say nothing; a line without a reason is refused by its text."""
    assert mutants.equivalent("# nothing\n\na.f || x || y | None || the same value\n") == {
        "a.f || x || y | None": "the same value"
    }
    with pytest.raises(ValueError, match=r"a\.f \|\| x \|\| y"):
        mutants.equivalent("a.f || x || y")
    assert mutants.equivalent(mutants.EQUIVALENT.read_text()) is not None


def test_a_mutant_of_a_method_has_its_class_in_its_identity() -> None:
    """Neither mutmut's number nor its mangled name is in it: both change with the code around."""
    name = "mcagent.core.engine.xǁEngineǁstep__mutmut_12"
    assert mutants.identity(name, DIFF) == "mcagent.core.engine.Engine.step || return 1 || return 2"


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_budgets_are_durations(text: str, expected: float) -> None:
    """Seconds, minutes or hours."""
    assert mutants.seconds(text) == expected


def test_another_budget_is_refused() -> None:
    """The message has what was wrong and what would be right."""
    with pytest.raises(ArgumentTypeError, match="'soon' is no duration: 90s"):
        mutants.seconds("soon")
