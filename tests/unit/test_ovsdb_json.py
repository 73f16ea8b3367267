"""The JSON reader that stands in for python-ovs' finds the ends of messages however they are cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane.ovsdb.json_stream import StreamParser

_text = st.text(alphabet='ab"\\{}[]:, é\n', max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=12,
)
_messages = st.lists(st.dictionaries(_text, _values, max_size=4), min_size=1, max_size=4)


@given(_messages, st.lists(st.integers(min_value=1, max_value=7), min_size=1, max_size=20))
def test_messages_cut_anywhere_are_read_back(messages: list[dict[str, object]], sizes: list[int]) -> None:
    """Whatever the stream is cut into, the same messages come out, and none takes of the next."""
    stream = "".join(json.dumps(message) for message in messages)
    parts, position, turn = [], 0, 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        parts.append(stream[position : position + size])
        position, turn = position + size, turn + 1
    found, parser = [], StreamParser()
    for part in parts:
        remaining = part
        while remaining:
            remaining = remaining[parser.feed(remaining) :]
            if parser.is_done():
                found.append(parser.finish())
                parser = StreamParser()
    assert found == messages


def test_what_is_no_json_is_told_as_text() -> None:
    """A broken message becomes words, which python-ovs takes as an error."""
    parser = StreamParser()
    parser.feed("{broken}")
    assert parser.is_done()
    assert isinstance(parser.finish(), str)
