"""Links between clusters in the API: status of Gateways, the annotation of a member, and their sums."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mcagent.model.parsing.granted import MAX_REFUSED
from mcagent.model.parsing.links import (
    MAX_ANSWERS,
    MAX_READ,
    MAX_REPORTED,
    MAX_TEXT,
    MAX_WHY,
    ClusterLink,
    as_text,
    fingerprint_text,
    merged,
    most_telling,
    read,
    read_text,
    settled,
    to_json,
)

SINCE = "2026-11-20T10:00:00Z"
PRINT, OTHER_PRINT = "1a2b3c4d5e6f", "000000000007"
FULL = ClusterLink(
    cluster="east",
    live=1,
    tunnels=3,
    since=SINCE,
    why="no answer",
    bytes_per_second=1500,
    round_trip_micros=2800,
    answers=(("192.0.2.1", PRINT), ("192.0.2.2", OTHER_PRINT)),
    refused=("10.1.0.0/16", "10.2.0.0/16"),
)
FULL_JSON = {
    "clusterID": "east",
    "live": 1,
    "tunnels": 3,
    "since": SINCE,
    "why": "no answer",
    "bytesPerSecond": 1500,
    "roundTripMicros": 2800,
    "answers": {"192.0.2.1": PRINT, "192.0.2.2": OTHER_PRINT},
    "refused": ["10.1.0.0/16", "10.2.0.0/16"],
}
SHORT = ClusterLink(cluster="west", live=2, tunnels=2)
SHORT_JSON = {"clusterID": "west", "live": 2, "tunnels": 2}


def test_json_of_a_link() -> None:
    """All fields are written and read; what is empty is not written. Another version reads the same names."""
    assert to_json(FULL) == FULL_JSON
    assert to_json(SHORT) == SHORT_JSON
    assert read([FULL_JSON, SHORT_JSON]) == (FULL, SHORT)
    assert as_text([SHORT]) == '[{"clusterID":"west","live":2,"tunnels":2}]'
    assert read_text(as_text([FULL, SHORT])) == (FULL, SHORT)
    assert read_text(as_text([])) == ()


def test_limits_of_written_links() -> None:
    """The API's limits hold for what is written: text, answers and refused CIDRs."""
    answers = tuple((f"192.0.2.{number}", PRINT) for number in range(MAX_ANSWERS + 1))
    refused = tuple(f"10.{number}.0.0/16" for number in range(MAX_REFUSED + 1))
    written = to_json(replace(FULL, why="x" * (MAX_WHY + 1), answers=answers, refused=refused))
    assert written["why"] == "x" * MAX_WHY
    assert written["answers"] == dict(answers[:MAX_ANSWERS])
    assert written["refused"] == list(refused[:MAX_REFUSED])


@pytest.mark.parametrize(
    ("live", "tunnels", "up"), [(0, 0, False), (0, 2, False), (1, 2, False), (1, 1, True), (2, 2, True)]
)
def test_a_link_is_up_if_all_its_tunnels_are(live: int, tunnels: int, up: bool) -> None:
    """A link without tunnels is not up."""
    assert ClusterLink(cluster="east", live=live, tunnels=tunnels).up is up


@pytest.mark.parametrize(
    "change",
    [
        {"clusterID": None},
        {"clusterID": "a b"},
        {"live": -1},
        {"live": 4},
        {"live": None},
        {"tunnels": 10_001},
        {"tunnels": "3"},
        {"since": "yesterday"},
        {"why": 7},
        {"bytesPerSecond": -1},
        {"bytesPerSecond": 10**15 + 1},
        {"answers": []},
        {"answers": {"x": PRINT}},
        {"answers": {"192.0.2.1": PRINT.upper()}},
        {"answers": {"192.0.2.1": PRINT + "0"}},
        {"answers": {"192.0.2.1": 7}},
        {"refused": {}},
        {"refused": ["x"]},
        {"refused": ["10.0.0.0/8"] * (MAX_REFUSED + 1)},
    ],
)
def test_an_invalid_link_is_left_out(change: dict[str, Any]) -> None:
    """Other links are read."""
    assert read([FULL_JSON | change, SHORT_JSON]) == (SHORT,)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"live": 0, "tunnels": 0}, {"live": 0, "tunnels": 0}),
        ({"live": 3}, {"live": 3}),
        ({"tunnels": 10_000}, {"tunnels": 10_000}),
        ({"since": None}, {"since": ""}),
        ({"since": "2026-11-20T12:00:00+02:00"}, {"since": SINCE}),
        ({"why": None}, {"why": ""}),
        ({"why": "\n" + "x" * MAX_WHY}, {"why": "\\n" + "x" * (MAX_WHY - 2) + "..."}),
        ({"bytesPerSecond": None}, {"bytes_per_second": 0}),
        ({"bytesPerSecond": 0}, {"bytes_per_second": 0}),
        ({"bytesPerSecond": 10**15}, {"bytes_per_second": 10**15}),
        ({"answers": None}, {"answers": ()}),
        (
            {"answers": {f"192.0.2.{number}": PRINT for number in range(9, 0, -1)}},
            {"answers": tuple((f"192.0.2.{number}", PRINT) for number in range(1, 9))},
        ),
        ({"refused": None}, {"refused": ()}),
        ({"refused": ["10.2.0.0/16", "10.1.0.9/16"]}, {"refused": ("10.1.0.0/16", "10.2.0.0/16")}),
    ],
)
def test_valid_values_of_a_link(change: dict[str, Any], expected: dict[str, Any]) -> None:
    """Values at the limits are read; text is printable; answers and CIDRs are sorted."""
    assert read([FULL_JSON | change]) == (replace(FULL, **expected),)


def test_number_of_links() -> None:
    """The first links count, of several with one cluster the first; the limits differ for the annotation."""
    many = [{"clusterID": f"c{number:04}", "live": 1, "tunnels": 1} for number in range(MAX_READ + 1)]
    assert [link.cluster for link in read(many)] == [str(item["clusterID"]) for item in many[:MAX_READ]]
    assert read(tuple(many[:2])) == read(many[:2])
    assert len(read(many, 5)) == 5
    assert len(read_text(json.dumps(many[: MAX_REPORTED + 1]))) == MAX_REPORTED
    assert read([SHORT_JSON, SHORT_JSON | {"live": 0}]) == (SHORT,)
    for value in (None, "abc", {"a": SHORT_JSON}, 7):
        assert read(value) == ()


def test_length_of_the_annotation() -> None:
    """A text of 32,768 characters is read; a longer one, and what is no JSON, counts as no links."""
    text = json.dumps([SHORT_JSON])
    assert read_text(text.ljust(MAX_TEXT)) == (SHORT,)
    assert read_text(text.ljust(MAX_TEXT + 1)) == ()
    assert read_text("") == ()
    assert read_text("[{") == ()


def test_links_of_several_gateways() -> None:
    """Tunnels and rates add up; the reason is that of the link that lacks most tunnels, the time the last."""
    worse = ClusterLink(
        cluster="east",
        live=1,
        tunnels=5,
        since="2026-11-21T10:00:00Z",
        why="timeout",
        bytes_per_second=7,
        answers=(("192.0.2.0", PRINT), ("192.0.2.1", PRINT)),
        refused=("10.0.0.0/16", "10.1.0.0/16"),
    )
    total = ClusterLink(
        cluster="east",
        live=2,
        tunnels=8,
        since="2026-11-21T10:00:00Z",
        why="timeout",
        bytes_per_second=1507,
        round_trip_micros=2800,
        answers=(("192.0.2.0", PRINT), ("192.0.2.1", PRINT), ("192.0.2.2", OTHER_PRINT)),
        refused=("10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"),
    )
    assert merged([[SHORT, FULL], [worse]]) == (total, SHORT)
    assert merged([[worse], [FULL, SHORT]]) == (total, SHORT)
    larger_but_complete = ClusterLink(cluster="east", live=9, tunnels=9, why="")
    (link,) = merged([[larger_but_complete], [FULL]])
    assert link.why == "no answer"
    equal = replace(FULL, why="another")
    assert merged([[FULL], [equal]])[0].why == merged([[equal], [FULL]])[0].why == "another"


def test_limits_of_merged_links() -> None:
    """The first answers and CIDRs in order count."""
    answers = [(f"192.0.2.{number}", PRINT) for number in range(1, 10)]
    refused = [f"10.{number:02}.0.0/16" for number in range(20)]
    reports = [
        [replace(SHORT, answers=(answer,), refused=(cidr,))]
        for answer, cidr in zip([*answers, *answers, answers[0], answers[0]], refused, strict=True)
    ]
    (link,) = merged(reversed(reports))
    assert link.answers == tuple(answers[:MAX_ANSWERS])
    assert link.refused == tuple(refused[:MAX_REFUSED])


def test_links_that_are_reported_first() -> None:
    """Links that are not up come before those with most traffic, and names decide between equal ones."""
    down = ClusterLink(cluster="z", live=0, tunnels=1)
    busy = ClusterLink(cluster="y", live=1, tunnels=1, bytes_per_second=9)
    quiet = [ClusterLink(cluster=name, live=1, tunnels=1) for name in "ab"]
    links = [quiet[1], busy, quiet[0], down]
    assert most_telling(links, 1) == (down,)
    assert most_telling(links, 2) == (busy, down)
    assert most_telling(links, 3) == (quiet[0], busy, down)
    assert most_telling(links) == (*quiet, busy, down)
    many = [replace(SHORT, cluster=f"c{number:03}") for number in range(MAX_REPORTED + 1)]
    assert most_telling(many) == tuple(many[:MAX_REPORTED])


@pytest.mark.parametrize("address", ["192.0.2.{}", "2001:db8:1234:5678:9abc:def0:1234:{}"])
def test_the_links_that_are_reported_are_read(address: str) -> None:
    """With many gateways, long addresses and long names the annotation is full before all links are in it."""
    answers = tuple((address.format(number), PRINT) for number in range(1, MAX_ANSWERS + 1))
    refused = tuple(f"10.{number}.128.0/17" for number in range(100, 100 + MAX_REFUSED))
    full = replace(FULL, why="x" * MAX_WHY, answers=answers, refused=refused)
    links = [replace(full, cluster=f"cluster-{number:03}", bytes_per_second=999 - number) for number in range(200)]
    reported = most_telling(links)
    text = as_text(reported)
    assert read_text(text) == reported == tuple(links[: len(reported)])
    assert MAX_TEXT - len(as_text(links[:1])) < len(text) <= MAX_TEXT


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (100, 150, 100),
        (100, 151, 150),
        (100, 50, 100),
        (100, 49, 49),
        (0, 0, 0),
        (0, 1, 1),
        (0, 99, 99),
        (0, 123, 120),
        (0, 98_765, 99_000),
    ],
)
def test_rates_change_by_more_than_half(before: int, now: int, expected: int) -> None:
    """A rate that changed less keeps its last value; a new one has two significant digits."""
    assert settled({"east": before, "gone": 5}, {"east": now}) == {"east": expected}
    if not before:
        assert settled({}, {"east": now}) == {"east": expected}


def test_fingerprints_have_twelve_digits() -> None:
    """Leading zeros are written, so that the text is the same in all reports."""
    assert fingerprint_text(7) == OTHER_PRINT
    assert fingerprint_text(0x1A2B3C4D5E6F) == PRINT
