"""The JSON reader that stands in for python-ovs' finds the ends of messages however they are cut."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.agent.config import Settings
from mcagent.api.status import Status
from mcagent.dataplane.ovsdb import query
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.dataplane.ovsdb.json_stream import StreamParser
from mcagent.dataplane.ovsdb.observe import BridgeState
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings import switch
from mcagent.model.config import Config

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


class Answering(socket.socket):
    """A connection whose other end answers with single bytes."""

    answer = b""

    def connect(self, _: object) -> None:
        """Connect to nothing."""

    def sendall(self, *_: object) -> None:
        """Take a request."""
        self._parts = iter(self.answer)

    def recv(self, *_: object) -> bytes:
        """Return the next byte."""
        return bytes([next(self._parts)])


def test_an_answer_that_is_cut_within_a_letter_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs' external_ids may have letters of several bytes."""
    rows = [{"name": "brücke"}]
    answer = json.dumps({"id": 0, "result": [{"rows": rows}], "error": None}, ensure_ascii=False)
    monkeypatch.setattr(Answering, "answer", answer.encode())
    monkeypatch.setattr(socket, "socket", Answering)
    assert query.select("unix:/run/db.sock", "read", {}) == [rows]


def test_the_doctor_of_a_database_without_content_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was created again after it was lost, and not initialised."""
    monkeypatch.setattr(OvsdbBackend, "observe", lambda _: {})
    monkeypatch.setattr(OvsdbBackend, "statistics", lambda _: {})
    monkeypatch.setattr(OvsdbBackend, "errors", lambda _: {})
    monkeypatch.setattr(OvsdbBackend, "liveness", lambda _: BridgeState())
    monkeypatch.setattr(switch, "select", lambda *_: [[]])
    state = switch.switch(ExaminedNode(Settings(core=Config(node_name="n1")), Status(), readings={}))
    assert state.away
    assert "the database is empty" in state.error
