"""The size of a JSON value, without recursion, and only up to a limit. Pure.

It is checked before anything else reads an object that a member wrote, however deeply that is nested.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any

from mcagent.kube.source import RawObject


def json_size(value: Any, most: int) -> int:
    """Return about how many bytes of JSON a value is; once that is more than `most`, what was counted so far."""
    size, todo = 0, [value]
    while todo and size <= most:
        item = todo.pop()
        if isinstance(item, str):
            size += _text(item, most)
        elif isinstance(item, dict):
            size += 2 + 2 * len(item)
            if size <= most:
                todo.extend(item.values())
                todo.extend(item)
        elif isinstance(item, list | tuple):
            size += 2 + len(item)
            if size <= most:
                todo.extend(item)
        elif isinstance(item, bool) or item is None:
            size += 4
        else:
            size += item.bit_length() // 3 + 1 if isinstance(item, int) else 20
    return size


def object_size(raw: RawObject, most: int) -> int:
    """Return about how many bytes an object is without its status and the API server's bookkeeping."""
    content = {key: value for key, value in raw.items() if key not in ("status", "metadata")}
    meta = raw.get("metadata")
    if isinstance(meta, dict):
        content["metadata"] = {key: value for key, value in meta.items() if key != "managedFields"}
    return json_size(content, most)


def _text(text: str, most: int) -> int:
    if len(text) > most:
        return len(text)
    encoded = encode_basestring(text)
    return len(encoded) if encoded.isascii() else len(encoded.encode("utf-8", "surrogatepass"))
