"""A fast JSON reader for python-ovs where its C extension was not built (its wheels and sdist build none).

python-ovs then reads JSON character by character in Python: 0.4 s of the 0.6 s that loading a thousand
tunnels took. This one only looks for the end of each message and leaves the rest to the standard library.
"""

from __future__ import annotations

import json
import re

import ovs.json

_MARKS = re.compile(r'["\\{}]')


class StreamParser:
    """Takes the place of `ovs.json.Parser` for JSON-RPC: every message is an object."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last character of the part before was a backslash in a string
        self._done = False

    def feed(self, text: str) -> int:
        """Take characters up to the end of the object; return how many were taken."""
        skip = 1 if self._escaped else 0
        self._escaped = False
        depth, in_string = self._depth, self._in_string
        for mark in _MARKS.finditer(text):
            position = mark.start()
            if position < skip:
                continue
            character = text[position]
            if in_string:
                if character == '"':
                    in_string = False
                elif character == "\\":
                    skip = position + 2
            elif character == '"':
                in_string = True
            elif character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
                if depth <= 0:
                    self._done = True
                    self._parts.append(text[: position + 1])
                    return position + 1
        self._escaped = skip > len(text)
        self._depth, self._in_string = depth, in_string
        self._parts.append(text)
        return len(text)

    def is_done(self) -> bool:
        """Tell whether the object is whole."""
        return self._done

    def finish(self) -> object:
        """Return the object, or what is wrong with it as text, as `ovs.json.Parser` does."""
        try:
            return json.loads("".join(self._parts))
        except ValueError as error:
            return f"syntax error: {error}"


def install() -> None:
    """Let python-ovs use this reader unless its own C one is there."""
    if ovs.json.PARSER != ovs.json.PARSER_C:
        ovs.json.Parser = StreamParser
