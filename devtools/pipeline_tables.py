"""The tables of docs/pipeline.md: `python -m devtools.pipeline_tables FILE` puts the declaration into the page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flows.declare import Category, Pipeline
from flows.fields import Bits
from flows.pipeline import PIPELINE

_BEGIN = "<!-- declaration: made by python -m devtools.pipeline_tables -->"
_END = "<!-- end of declaration -->"


def filled(page: str, pipeline: Pipeline = PIPELINE) -> str:
    """Return the page with its declaration made anew. ValueError when it has no place for one."""
    head, found, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"no place for the declaration: the file needs the lines {_BEGIN} and {_END}")
    declaration = "\n".join(_sections(pipeline))
    return f"{head}{_BEGIN}\n\n{declaration}\n{_END}{tail}"


def _sections(pipeline: Pipeline) -> Iterator[str]:
    yield from ("## Tables", "")
    yield from _table(("#", "name", "does", "matches", "goes on to"), _tables(pipeline))
    yield from ("## Registers, marks and labels", "")
    yield from _table(("name", "bits", "holds"), ((b.name, f"`{_range(b)}`", b.purpose) for b in pipeline.bits))
    yield from ("## Conntrack zones", "", "Numbers are the configured base plus the offset.", "")
    zones = ((f"base+{zone.offset}", zone.name, zone.purpose) for zone in pipeline.zones)
    yield from _table(("zone", "name", "holds"), zones)
    yield from ("## Groups", "", "A group's number is `kind << 24 | number`.", "")
    kinds = ((str(k.number), k.name, k.purpose, _names(pipeline, k.next)) for k in pipeline.groups)
    yield from _table(("kind", "name", "chooses", "goes on to"), kinds)
    owner = f"`{pipeline.cookies.owner:#06x} << 48 | category << 40 | number`"
    yield from ("## Cookies", "", f"{owner} (the number has 32 bits). Drops:", "")
    yield from _table(("category", "name", "dropped"), _categories(c for c in pipeline.categories if c.drops))
    yield from ("Everything else:", "")
    yield from _table(("category", "name", "for"), _categories(c for c in pipeline.categories if not c.drops))
    yield from ("## Priorities", "")
    yield from _table(("priority", "for"), ((str(number), text) for number, text in pipeline.priorities))


def _tables(pipeline: Pipeline) -> Iterator[Sequence[str]]:
    for table in pipeline.tables:
        fields = ", ".join(f"`{name}`" for name in dict.fromkeys(item.name for item in table.fields))
        yield str(table.number), table.name, table.purpose, fields, _names(pipeline, table.next)


def _names(pipeline: Pipeline, numbers: Iterable[int]) -> str:
    names = {table.number: table.name for table in pipeline.tables}
    return ", ".join(f"{number} {names[number]}" for number in numbers) or "-"


def _range(bits: Bits) -> str:
    if bits.low == 0 and bits.high == bits.field.width - 1:
        return bits.field.name
    return (
        f"{bits.field.name}[{bits.low}]"
        if bits.low == bits.high
        else f"{bits.field.name}[{bits.low}..{bits.high}]"
    )


def _categories(found: Iterable[Category]) -> Iterator[Sequence[str]]:
    return ((f"{category.number:#04x}", category.name, category.purpose) for category in found)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
