"""What the failover benchmark keeps of its rounds, and the tables and the picture made of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from devtools.errors import LabError
from tests.failover_results import Json, Results, list_of, plot, table

ABOUT: Json = {"datapath": "netdev", "gateways": 3, "workers": 2, "asked": "much", "load average": 0.5}
SVG = "{http://www.w3.org/2000/svg}"


def a_round(*silences: float, **fields: object) -> Json:
    """Return a round in which connections to Pods were silent for so long."""
    measured_round: Json = {
        "node": "west-gw1",
        "side": "serving",
        "tcp": {"pods": list(silences), "service": [0.02]},
    }
    numbers = dict.fromkeys(
        ("udp", "request", "lost", "broken", "after lost", "after broken", "healed", "seconds"), 0.0
    )
    return {**measured_round, **numbers, **fields}


def with_rounds(row: str, *rounds: Json, path: Path | None = None) -> Results:
    """Return results with these rounds of one row."""
    results = Results(path, ABOUT)
    results.rounds("100x3", row).extend(rounds)
    return results


def cells(results: Results) -> dict[str, str]:
    """Return the only row of the table by the names of its columns."""
    names, _, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in table(results.all[0]))
    return dict(zip(names, row, strict=True))


def test_a_file_is_read_as_it_was_written_and_added_to(tmp_path: Path) -> None:
    """What an earlier run measured stays, round by round; the file is plain JSON."""
    path = tmp_path / "failover.json"
    with_rounds("link cut", a_round(0.5), path=path).save()
    again = Results(path, {**ABOUT, "load average": 0.1})
    assert again.rounds("100x3", "link cut") == [a_round(0.5)]
    again.rounds("100x3", "link cut").append(a_round(0.4))
    again.save()
    document = json.loads(path.read_text())
    assert [paragraph["load average"] for paragraph in document["about"]] == [0.1, 0.5]
    assert document["results"][0]["rounds"] == {"link cut": [a_round(0.5), a_round(0.4)]}


@pytest.mark.parametrize("key", ["datapath", "gateways", "asked", "encryption", "translation of CIDRs"])
def test_what_was_measured_otherwise_is_not_mixed_in(key: str, tmp_path: Path) -> None:
    """The refusal names what differs; the load average may."""
    path = tmp_path / "failover.json"
    with_rounds("link cut", a_round(0.5), path=path).save()
    with pytest.raises(LabError, match=f"another {key}:"):
        Results(path, {**ABOUT, key: "other"})


def test_the_table_tells_silences_and_all_that_was_lost_or_broken() -> None:
    """Percentiles over all connections of all rounds, sums of what broke, means of what was lost."""
    fields = {"lost": 10, "after lost": 4, "broken": 1, "after broken": 2, "request": 1.25}
    row = cells(with_rounds("link cut", a_round(0.1, 0.2, 0.3), a_round(0.7, **fields)))
    assert (row["rounds"], row["TCP silence p50"], row["longest"], row["must"]) == (
        "2",
        "0.10 s",
        "0.70 s",
        "0.6 s",
    )
    assert (row["datagrams lost"], row["lost at return"]) == ("5", "2")
    assert (row["broken"], row["longest request"]) == ("3", "1.25 s")


def test_a_return_is_counted_from_the_end_of_the_fault() -> None:
    """Where nothing can pass during the fault, its silences say nothing."""
    row = cells(with_rounds("all gateways gone, one returns", a_round(1.9, healed=0.3)))
    assert (row["longest"], row["must"]) == ("0.30 s", "2 s")


@pytest.mark.parametrize(
    ("row", "measured_round", "good"),
    [
        ("link cut", a_round(0.59), True),
        ("link cut", a_round(0.61), False),
        ("drained", a_round(0.61), True),
        ("drained", a_round(0.0, **{"after lost": 1}), False),
        ("30 % loss", a_round(3.0), True),
    ],
)
def test_the_picture_shows_what_is_beyond_its_bound(row: str, measured_round: Json, good: bool) -> None:
    """A bar for each row; another colour where what must be was not reached."""
    picture = ET.fromstring(plot(with_rounds(row, measured_round).all))
    bars = [bar.get("fill") for bar in picture.iter(f"{SVG}rect")][1:]
    assert bars == ["#3a7" if good else "#c63", "#222"]
    assert row in [text.text for text in picture.iter(f"{SVG}text")]


def test_rounds_of_several_files_are_told_together(tmp_path: Path) -> None:
    """Problems once each, rounds one after the other."""
    told = Results(None, {})
    for number in (1, 2):
        results = with_rounds("link cut", a_round(number / 10), path=tmp_path / f"{number}.json")
        list_of(results.of("100x3")["problems"]).append("late")
        results.save()
        told.add(json.loads((tmp_path / f"{number}.json").read_text()))
    assert told.rounds("100x3", "link cut") == [a_round(0.1), a_round(0.2)]
    assert told.of("100x3")["problems"] == ["late"]
