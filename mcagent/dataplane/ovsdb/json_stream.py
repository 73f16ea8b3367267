"""A fast JSON reader for python-ovs where its C extension was not built (its wheels and sdist build none).

python-ovs then reads JSON character by character in Python: 0.4 s of the 0.6 s that loading a thousand
tunnels took. This one only looks for the end of each message and leaves the rest to the standard library.
"""

from __future__ import annotations

import json
import re
from typing import Any

import ovs.json

_TOKENS = re.compile(r'[{}]|"[^"\\]*(?:\\.[^"\\]*)*("?)', re.DOTALL)  # braces, and strings, which may hold braces


class StreamParser:
    """Takes the place of `ovs.json.Parser` for JSON-RPC: every message is an object."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # what is before was looked at
        self._depth = 0
        self._done = False

    def feed(self, text: str) -> int:
        """Take characters up to the end of the object; return how many were taken."""
        before = len(self._text)
        self._text += text
        for token in _TOKENS.finditer(self._text, self._at):
            if token[1] == "":  # a string that goes on
                self._at = token.start()
                return len(text)
            self._depth += {"{": 1, "}": -1}.get(token[0], 0)
            if token[0] == "}" and self._depth <= 0:
                self._text, self._done = self._text[: token.end()], True
                return len(self._text) - before
        self._at = len(self._text)
        return len(text)

    def is_done(self) -> bool:
        """Tell whether the object is whole."""
        return self._done

    def finish(self) -> Any:
        """Return the object, or what is wrong with it as text, as `ovs.json.Parser` does."""
        try:
            return json.loads(self._text)
        except ValueError as error:
            return f"syntax error: {error}"


def install() -> None:
    """Let python-ovs use this reader unless its own C one is there."""
    if ovs.json.PARSER != ovs.json.PARSER_C:
        ovs.json.Parser = StreamParser
