"""A fast JSON parser for python-ovs without its C extension (its wheels and sdist do not build it).

python-ovs then parses JSON character by character in Python: 0.4 s of the 0.6 s of loading a thousand tunnels.
This parser only finds the end of each message, and the standard library does the rest.
"""

from __future__ import annotations

import json
import re
from typing import Any

import ovs.json

_TOKENS = re.compile(r'[{}]|"[^"\\]*(?:\\.[^"\\]*)*("?)', re.DOTALL)  # braces, and strings, which may hold braces


class StreamParser:
    """Replaces `ovs.json.Parser` for JSON-RPC, where every message is an object."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # position up to which the text was scanned
        self._depth = 0
        self._done = False

    def feed(self, text: str) -> int:
        """Consume characters up to the end of the object; return their number."""
        before = len(self._text)
        self._text += text
        for token in _TOKENS.finditer(self._text, self._at):
            if token[1] == "":  # an incomplete string
                self._at = token.start()
                return len(text)
            self._depth += {"{": 1, "}": -1}.get(token[0], 0)
            if token[0] == "}" and self._depth <= 0:
                self._text, self._done = self._text[: token.end()], True
                return len(self._text) - before
        self._at = len(self._text)
        return len(text)

    def is_done(self) -> bool:
        """Return whether the object is complete."""
        return self._done

    def finish(self) -> Any:
        """Return the object, or a text that describes the error, as `ovs.json.Parser` does."""
        try:
            return json.loads(self._text)
        except ValueError as error:
            return f"syntax error: {error}"


def install() -> None:
    """Make python-ovs use this parser, unless it has its C extension."""
    if ovs.json.PARSER != ovs.json.PARSER_C:
        ovs.json.Parser = StreamParser
