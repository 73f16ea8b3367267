"""Objects as somebody hostile stores them: good ones with something nasty in one place, and in the form of JSON.

What is here passes an API server: CRDs keep unknown fields, and a nested value may be thousands deep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from mcagent.model.parsing.document import decode

Path = tuple[str | int, ...]
DEEP = 3000  # levels: more than any stack has, less than API servers take (10,000)
_MARK = "@deep:"
_BRACKETS = {"list": ("[", "]"), "mapping": ('{"x":', "}"), "both": ('[{"x":', "}]")}

# "@deep:KIND" becomes something nested very deeply in the text.
VALUES: tuple[Any, ...] = (
    *(f"{_MARK}{kind}" for kind in _BRACKETS),
    None,
    True,
    0,
    -1,
    2**63,
    10**30,
    1.5,
    1e308,
    "",
    " ",
    "x" * 70_000,
    "\x1b[2J\r\nlevel=error forged\x9b31m",
    "\ud800",
    "\u202e/etc\u0000",
    "\uff11\uff10.1.1.1",  # digits, for Python
    "010.1.1.1",
    "::ffff:10.0.0.1",
    "fe80::1%eth0",
    "0.0.0.0/0",
    "10.0.0.0/33",
    "2026-13-99T99:99:99Z",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": ""},
    {"ip": {"ip": []}},
    list(range(3000)),
    [{"name": "a", "port": 1}] * 300,
    {str(number): number for number in range(2000)},
)


def text_of(obj: Any) -> str:
    """Return an object as the JSON that an API server sends."""
    text = json.dumps(obj)
    for kind, (start, end) in _BRACKETS.items():
        text = text.replace(f'"{_MARK}{kind}"', start * DEEP + "1" + end * DEEP)
    return text


def received(obj: Any) -> Any:
    """Return an object as it is after the wire."""
    return decode(text_of(obj).encode())


def paths(obj: Any, before: Path = ()) -> Iterator[Path]:
    """Yield the places of an object that its writer fills; API servers check `metadata` but for texts in it."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            if before or key not in ("apiVersion", "kind", "metadata"):
                yield (*before, key)
                yield from paths(value, (*before, key))
        yield (*before, "unknown")
    elif isinstance(obj, list):
        for number, value in enumerate(obj[:2]):
            yield (*before, number)
            yield from paths(value, (*before, number))


def changed(obj: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value in one place."""
    if not path:
        return value
    first, *remaining = path
    if isinstance(obj, dict):
        return {**obj, first: changed(obj.get(first), tuple(remaining), value)}
    assert isinstance(first, int)
    return [changed(item, tuple(remaining), value) if number == first else item for number, item in enumerate(obj)]


def spoiled(good: Any) -> st.SearchStrategy[Any]:
    """Give a good object with one or two places spoiled."""
    places = sorted(paths(good), key=repr)
    change = st.tuples(st.sampled_from(places), st.sampled_from(VALUES))
    return st.lists(change, min_size=1, max_size=2, unique_by=lambda pair: pair[0]).map(
        lambda changes: _spoil(good, changes)
    )


def _spoil(good: Any, changes: list[tuple[Path, Any]]) -> Any:
    for path, value in sorted(changes, key=lambda change: -len(change[0])):
        good = changed(good, path, value)
    return good
