"""docs/pipeline.md has the declaration as it is."""

from __future__ import annotations

from pathlib import Path

from devtools.pipeline_tables import filled
from flows.pipeline import PIPELINE

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_page_is_what_the_declaration_says() -> None:
    """Fails when the declaration changed: `make docs` mends it."""
    assert PAGE.read_text() == filled(PAGE.read_text()), "stale: make docs"


def test_the_page_names_everything_declared() -> None:
    """Tables, bit ranges, zones, groups and cookie categories are all on it."""
    page = PAGE.read_text()
    for table in PIPELINE.tables:
        assert f"| {table.number} | {table.name} |" in page
    names = [bits.name for bits in PIPELINE.bits] + [zone.name for zone in PIPELINE.zones]
    names += [kind.name for kind in PIPELINE.groups] + [category.name for category in PIPELINE.categories]
    for name in names:
        assert f"| {name} |" in page
