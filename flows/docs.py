"""Makes Markdown of a declared pipeline. `python -m flows.docs > docs/pipeline.md` writes that of mcagent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from flows.declare import Pipeline, Table
from flows.fields import Bits, Field


def markdown(pipeline: Pipeline, *, title: str, intro: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return the whole page: the declaration, and `sections` (heading, Markdown) after it."""
    lines = [f"# {title}", "", "<!-- Made by `python -m flows.docs`; do not edit. -->", "", intro]
    lines += [
        "## Tables",
        "",
        *_rows(("#", "name", "does", "matches", "goes on to", "miss"), _tables(pipeline)),
        "",
    ]
    lines += ["## Registers, marks and labels", ""]
    lines += [
        *_rows(("name", "bits", "holds"), ((b.name, f"`{_range(b)}`", b.purpose) for b in pipeline.bits)),
        "",
    ]
    lines += ["## Conntrack zones", "", "Numbers are the configured base plus the offset.", ""]
    zones = ((f"base+{zone.offset}", zone.name, zone.purpose) for zone in pipeline.zones)
    lines += [*_rows(("zone", "name", "holds"), zones), ""]
    lines += ["## Groups", "", "A group's number is `kind << 24 | number`.", ""]
    kinds = ((str(k.number), k.name, k.purpose, _names(pipeline, k.next)) for k in pipeline.groups)
    lines += [*_rows(("kind", "name", "chooses", "goes on to"), kinds), ""]
    lines += ["## Cookies", ""]
    lines += [
        f"`{pipeline.cookies.owner:#06x} << 48 | category << 40 | number` (the number has 32 bits). Drops:",
        "",
    ]
    lines += [
        *_rows(("category", "name", "dropped"), _categories(pipeline, drops=True)),
        "",
        "Everything else:",
        "",
    ]
    lines += [*_rows(("category", "name", "for"), _categories(pipeline, drops=False)), ""]
    lines += ["## Priorities", ""]
    lines += [*_rows(("priority", "for"), ((str(number), text) for number, text in pipeline.priorities)), ""]
    for heading, text in sections:
        lines += [f"## {heading}", "", text]
    return "\n".join(lines).rstrip() + "\n"


def _tables(pipeline: Pipeline) -> Iterator[Sequence[str]]:
    for table in pipeline.tables:
        fields = ", ".join(f"`{name}`" for name in _fields(table))
        yield str(table.number), table.name, table.purpose, fields, _names(pipeline, table.next), table.miss


def _fields(table: Table) -> Iterable[str]:
    return dict.fromkeys(item.name for item in table.fields)


def _names(pipeline: Pipeline, numbers: Iterable[int]) -> str:
    return ", ".join(f"{number} {pipeline.table(number).name}" for number in numbers) or "-"


def _range(bits: Bits) -> str:
    field: Field = bits.field
    if bits.low == 0 and bits.high == field.width - 1:
        return field.name
    return f"{field.name}[{bits.low}]" if bits.low == bits.high else f"{field.name}[{bits.low}..{bits.high}]"


def _categories(pipeline: Pipeline, *, drops: bool) -> Iterator[Sequence[str]]:
    return ((f"{c.number:#04x}", c.name, c.purpose) for c in pipeline.categories if c.drops is drops)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def mcagent_page() -> str:
    """Return docs/pipeline.md."""
    from flows.pipeline.declaration import PIPELINE
    from flows.pipeline.packet_walks import INTRO, LIMITS, PACKET_WALKS

    sections = (("Packet walks", PACKET_WALKS), ("Limits", LIMITS))
    return markdown(PIPELINE, title="The pipeline of br-mc", intro=INTRO, sections=sections)


if __name__ == "__main__":
    sys.stdout.write(mcagent_page())
