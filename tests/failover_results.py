"""What the benchmark of failover found, round by round: the file it is kept in, tables and a picture of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.traffic.load import percentile
from tests.worlds.failover import INTERVALS, ROWS, Counted, Intervals, Row

# Rounds are combined only if these are equal.
SAME = ("datapath", "encryption", "translation of CIDRs", "gateways", "workers", "asked")
Json = dict[str, object]


class Results:
    """What was measured so far, in its file after every round."""

    def __init__(self, path: Path | None, about: Json) -> None:
        self._path = path
        self.all: list[Json] = []
        self._about = [about] if about else []
        if path is not None and path.exists() and path.stat().st_size:
            self.add(json.loads(path.read_text()))

    def add(self, found: Json) -> None:
        """Take in what is in a file. Raises LabError where it was measured in another way."""
        for other in list_of(found["about"]):
            for paragraph in self._about[:1]:
                # older files do not record encryption and translation
                differs = [key for key in SAME if paragraph.get(key, "none") != other.get(key, "none")]
                if differs:
                    raise LabError(f"these were measured with another {' and '.join(differs)}: use another file")
        self._about += [paragraph for paragraph in list_of(found["about"]) if paragraph not in self._about]
        for result in list_of(found["results"]):
            mine = self.of(str(result["intervals"]))
            for key in ("loads", "problems"):
                list_of(mine[key]).extend(
                    paragraph for paragraph in list_of(result[key]) if paragraph not in list_of(mine[key])
                )
            mine["rounds made again"] = int(str(mine["rounds made again"])) + int(str(result["rounds made again"]))
            for name, rounds in dict_of(result["rounds"]).items():
                list_of(dict_of(mine["rounds"]).setdefault(name, [])).extend(rounds)

    def of(self, intervals: str) -> Json:
        """Return what was measured with these intervals."""
        for result in self.all:
            if result["intervals"] == intervals:
                return result
        self.all.append(
            {"intervals": intervals, "loads": [], "problems": [], "rounds made again": 0, "rounds": {}}
        )
        return self.all[-1]

    def rounds(self, intervals: str, row: str) -> list[Json]:
        """Return the rounds of a row, to be added to."""
        return list_of(dict_of(self.of(intervals)["rounds"]).setdefault(row, []))

    def save(self) -> None:
        """Write the file anew, whole."""
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_text(as_text({"about": self._about, "results": self.all}) + "\n")
            new.replace(self._path)


def as_text(value: object, depth: int = 0) -> str:
    """Return JSON with a line for each round, so that a version of the file can be compared with another."""
    space = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and "node" not in value:
        parts = [f"{json.dumps(key)}: {as_text(number, depth + 1)}" for key, number in value.items()]
        return f"{{{space}{(',' + space).join(parts)}}}" if parts else "{}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{space}{(',' + space).join(as_text(number, depth + 1) for number in value)}]"
    return json.dumps(value)


def list_of(value: object) -> list[Any]:
    """Return what is a list in the file."""
    assert isinstance(value, list)
    return value


def dict_of(value: object) -> dict[str, Any]:
    """Return what is an object in the file."""
    assert isinstance(value, dict)
    return value


HEAD = (
    *("fault", "rounds", "TCP silence p50", "p99", "longest", "must", "UDP gap p50", "p99"),
    *("datagrams lost", "broken", "longest request", "lost at return", "seconds a round"),
)


def _numbers(rounds: Sequence[Json], key: str) -> list[float]:
    return [float(str(measured_round[key])) for measured_round in rounds]


def silences(rounds: Sequence[Json]) -> list[float]:
    """Return the longest silence of every TCP connection in every round."""
    found: list[float] = []
    for measured_round in rounds:
        tcp = measured_round["tcp"]
        assert isinstance(tcp, dict)
        found += [value for part in tcp.values() for value in part]
    return found


def bound_of(row: Row, intervals: Intervals) -> str:
    """Return what must come of a row, as words."""
    if row.lossless:
        return "0 lost"
    if row.must:
        return row.must
    return f"{row.bound or intervals.bound:g} s"


def ends(row: Row, rounds: Sequence[Json]) -> list[float]:
    """Return what is held against the bound: silences, or times from the end of the fault to the last answer."""
    return silences(rounds) if row.counted is Counted.SILENCE else _numbers(rounds, "healed")


def cells(name: str, intervals: Intervals, rounds: Sequence[Json]) -> list[str]:
    """Return a row of the table as text."""
    row = ROWS[name]
    tcp, udp = ends(row, rounds), _numbers(rounds, "udp")
    return [
        name,
        str(len(rounds)),
        *(f"{percentile(tcp, share):.2f} s" for share in (0.5, 0.99, 1.0)),
        bound_of(row, intervals),
        *(f"{percentile(udp, share):.2f} s" for share in (0.5, 0.99)),
        f"{sum(_numbers(rounds, 'lost')) / len(rounds):.0f}",
        f"{sum(_numbers(rounds, 'broken')) + sum(_numbers(rounds, 'after broken')):.0f}",
        f"{max(_numbers(rounds, 'request')):.2f} s",
        f"{sum(_numbers(rounds, 'after lost')) / len(rounds):.0f}",
        f"{sum(_numbers(rounds, 'seconds')) / len(rounds):.0f}",
    ]


def table(result: Json) -> Iterator[str]:
    """Yield the table in Markdown."""
    intervals, rounds = INTERVALS[str(result["intervals"])], result["rounds"]
    assert isinstance(rounds, dict)
    rows = [list(HEAD), *(cells(name, intervals, found) for name, found in rounds.items() if found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if not number:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def plot(results: Sequence[Json]) -> str:
    """Return an SVG picture: per fault a bar to p99, a mark at p50, a line at what is allowed."""
    margin, right, step, scale = 230, 60, 22, 260
    lines: list[str] = []
    y = 30
    longest = 2.0
    for result in results:
        intervals, rounds = INTERVALS[str(result["intervals"])], result["rounds"]
        assert isinstance(rounds, dict)
        lines.append(
            f'<text x="8" y="{y}" class="h">BFD {intervals.name}: {"; ".join(list_of(result["loads"]))}</text>'
        )
        y += step
        for name, fault_rounds in rounds.items():
            if not fault_rounds:
                continue
            row = ROWS[name]
            values = ends(row, fault_rounds)
            middle, high = percentile(values, 0.5), percentile(values, 0.99)
            limit = row.bound or intervals.bound
            free = row.lossless or bool(row.must)
            lost_count = sum(_numbers(fault_rounds, "lost")) + sum(_numbers(fault_rounds, "after lost"))
            good = not lost_count if row.lossless else free or high <= limit
            color = "#3a7" if good else "#c63"
            lines += [
                f'<text x="{margin - 8}" y="{y + 11}" text-anchor="end">{name}</text>',
                (
                    f'<rect x="{margin}" y="{y}" width="{scale * min(high, longest):.0f}" height="14" '
                    f'fill="{color}"/>'
                ),
                (
                    f'<rect x="{margin + scale * min(middle, longest):.0f}" y="{y}" width="3" height="14" '
                    'fill="#222"/>'
                ),
                f'<text x="{margin + scale * min(high, longest) + 8:.0f}" y="{y + 11}">{high:.2f} s</text>',
            ]
            if not free and limit <= longest:
                x = margin + scale * limit
                lines.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{y - 3}" y2="{y + 17}" class="limit"/>')
            y += step
        y += step
    width = margin + scale * longest + right
    style = "text{font:12px sans-serif;fill:#222}.h{font-weight:bold}.limit{stroke:#c00;stroke-width:2}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y}" viewBox="0 0 {width:.0f} {y}">'
    )
    words = (
        "Longest silence of a TCP connection: bar to p99, dark mark p50, red line what is allowed"
        " (where something returns: from then until all is answered)"
    )
    background = f'<rect width="{width:.0f}" height="{y}" fill="#fff"/>'
    return "\n".join(
        [head, f"<title>{words}</title>", f"<style>{style}</style>", background, *lines, "</svg>", ""]
    )
