"""docs/pipeline.md is made from the declaration and kept up to date."""

from __future__ import annotations

from pathlib import Path

from flows.docs import mcagent_page
from flows.pipeline import PIPELINE

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_page_is_what_the_declaration_says() -> None:
    """Fails when the declaration changed: `python -m flows.docs > docs/pipeline.md` mends it."""
    assert PAGE.read_text() == mcagent_page(), "stale: run python -m flows.docs > docs/pipeline.md"


def test_the_page_names_everything_declared() -> None:
    """Tables, bit ranges, zones, groups and cookie categories are all on it."""
    page = mcagent_page()
    for table in PIPELINE.tables:
        assert f"| {table.number} | {table.name} |" in page
    names = [bits.name for bits in PIPELINE.bits] + [zone.name for zone in PIPELINE.zones]
    names += [kind.name for kind in PIPELINE.groups] + [category.name for category in PIPELINE.categories]
    for name in names:
        assert f"| {name} |" in page
