"""The annotation by which the leader tells when it granted a claim: what is read, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.model.parsing.granted import REFUSED, at, granted_text, read_granted, to_microseconds

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
