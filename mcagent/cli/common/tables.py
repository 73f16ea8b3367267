"""Text for people: aligned tables, sizes, lines that a terminal only shows."""

from __future__ import annotations

from collections.abc import Sequence

from mcagent.model.parsing.field import escaped

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    ]


def safe(text: str) -> str:
    """Return lines for a terminal: unprintable characters, which objects of others may hold, are escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def size(count: int) -> str:
    """Return bytes with a unit: "512 B", "1.5 MiB"."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
