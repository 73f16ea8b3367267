"""Writes the tables of docs/pipeline.md from the declaration: `python -m devtools.pipeline_tables FILE`."""

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
    """Replace the declaration in a page; ValueError if the page lacks the marker lines."""
    head, begin, after_begin = page.partition(_BEGIN)
    _, end, tail = after_begin.partition(_END)
    if not begin or not end:
        raise ValueError(f"no place for the declaration: the file needs the lines {_BEGIN} and {_END}")
    declaration = "\n".join(_sections(pipeline))
    return f"{head}{_BEGIN}\n\n{declaration}\n{_END}{tail}"


def _sections(pipeline: Pipeline) -> Iterator[str]:
    yield from ("## Tables", "")
    yield from _table(("#", "table", "purpose", "match fields", "next tables"), _tables(pipeline))
    yield from ("## Registers, marks and labels", "")
    yield from _table(("name", "bits", "content"), ((b.name, f"`{_range(b)}`", b.purpose) for b in pipeline.bits))
    yield from ("## Conntrack zones", "", "Numbers are the configured base plus the offset.", "")
    zones = ((f"base+{zone.offset}", zone.name, zone.purpose) for zone in pipeline.zones)
    yield from _table(("zone", "name", "content"), zones)
    yield from ("## Groups", "", "A group ID is `kind << 24 | number`.", "")
    kinds = ((str(k.number), k.name, k.purpose, _names(pipeline, k.next)) for k in pipeline.groups)
    yield from _table(("kind", "name", "selects", "next tables"), kinds)
    owner = f"`{pipeline.cookies.owner:#06x} << 48 | category << 40 | number`"
    yield from ("## Cookies", "", f"{owner} (the number has 32 bits). Drops:", "")
    yield from _table(
        ("category", "name", "dropped packets"), _categories(c for c in pipeline.categories if c.drops)
    )
    yield from ("Other categories:", "")
    yield from _table(("category", "name", "flows"), _categories(c for c in pipeline.categories if not c.drops))
    yield from ("## Priorities", "")
    yield from _table(("priority", "flows"), ((str(number), text) for number, text in pipeline.priorities))


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


def _categories(categories: Iterable[Category]) -> Iterator[Sequence[str]]:
    return ((f"{category.number:#04x}", category.name, category.purpose) for category in categories)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
