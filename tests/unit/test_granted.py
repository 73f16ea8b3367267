"""The annotation by which the leader tells when it granted a claim: what is read, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.model.parsing.granted import (
    REFUSED,
    at,
    claims_text,
    granted_text,
    read_cidrs,
    read_granted,
    read_refused,
    refused_text,
    to_microseconds,
)

MOMENTS = st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants it so


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.just(REFUSED), MOMENTS.map(at))))
def test_what_is_written_is_read(claims: dict[str, str]) -> None:
    """Reading gives back what was written, and equal claims are written alike."""
    assert read_granted(granted_text(claims)) == claims
    assert granted_text(dict(reversed(claims.items()))) == granted_text(claims)


def test_times_sort_as_texts() -> None:
    """Whatever the zone and the fraction, the earlier moment is the lower text."""
    moments = [datetime(2026, 1, 1, 0, 0, i // 4, i % 4 * 250_000, UTC) for i in range(12)]
    zone = timezone(timedelta(hours=5))
    texts = [at(moment.astimezone(zone)) for moment in moments]
    assert texts == sorted(texts)
    assert to_microseconds("2026-01-01T00:00:01Z") == texts[4]
    assert read_granted('{"10.0.0.0/16":"2026-01-01T00:00:01.25Z"}') == {"10.0.0.0/16": texts[5]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"10.0.0.0/16":1}',
        '{"10.0.0.0/16":null}',
        '{"10.0.0.0/16":"yesterday"}',
        '{"10.0.0.0/16":"2026-01-01T00:00:00+05:00"}',
        '{"10.0.0.0/16":"٢٠٢٦-01-01T00:00:00Z"}',
        granted_text({f"{i}": "" for i in range(5000)}),
        '{"a":' + "9" * 10_000 + "}",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    """Anything else is a ValueError with a message of a few words."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_granted(text)
    assert len(str(caught.value)) < 150


NAMES = st.text("abc-", min_size=1, max_size=5)
CIDRS = st.lists(st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.2.3.0/24"]), min_size=1, unique=True)


@given(st.dictionaries(NAMES, CIDRS))
def test_refused_cidrs_that_are_written_are_read(refused: dict[str, list[str]]) -> None:
    """By cluster, sorted; nothing refused needs no annotation."""
    expected = {cluster_id: tuple(sorted(cidrs)) for cluster_id, cidrs in refused.items()}
    text = refused_text(refused)
    assert (text is None) == (not refused)
    assert read_refused(text or "") == expected


def test_refused_cidrs_are_bounded_and_checked() -> None:
    """Too long an annotation is not read, and not written; what is no CIDR is left out."""
    many = {f"cluster-{number}": ["10.0.0.0/8"] for number in range(2000)}
    assert len(read_refused(refused_text(many) or "")) > 100
    assert read_refused(json.dumps(many)) == {}
    assert read_refused('{"west": ["x", 7, "10.0.0.0/8"], "east": "10.0.0.0/8"}') == {"west": ("10.0.0.0/8",)}
    for text in ("", "x", "[]", "[" * 100_000):
        assert read_refused(text) == {}
    assert read_cidrs("10.1.0.0/16,192.0.2.1,,10.0.0.0/8") == (ip_network("10.0.0.0/8"), ip_network("10.1.0.0/16"))
    assert claims_text([]) is None
