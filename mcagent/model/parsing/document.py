"""JSON documents from others, decoded so that no later step can trip over their form. Pure.

Owns: limits of nesting and numbers, and what counts as text. What `decode` returns is at most `MAX_DEPTH` deep, so
whatever walks, compares or writes it may be recursive. Knows no kind of object.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 64  # mappings and lists inside each other; a NetworkPolicy in a list has 14
CUT = "(nested too deeply)"  # stands for what was deeper
TOO_LONG = "(too long a number)"
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
# A string, or one bracket. Possessive, and a string without an end takes the rest: each character is read once.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
# A pair of surrogates, half of one, any other escape.
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)
_DIGITS = 4000  # Python refuses to read longer integers (sys.int_info.str_digits_check_threshold and above)


def decode(text: bytes | str) -> Any:
    """Return the value of a JSON text. What is nested more than `MAX_DEPTH` deep is `CUT`.

    Bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD, as in Go. Raises ValueError when the
    text is no JSON, NaN and Infinity included, which JSON does not have.
    """
    return decode_noting_cuts(text)[0]


def decode_noting_cuts(text: bytes | str) -> tuple[Any, bool]:
    """Return what `decode` returns, and whether something was cut."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    deep = _may_be_deep(text)
    words = text.decode("utf-8", "replace")
    if "\\ud" in words or "\\uD" in words:
        words = _ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], words)
    if deep:
        words, deep = _shallow(words)
    try:
        return _DECODER.decode(words), deep
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with thousands of digits
        return _PATIENT.decode(words), deep
    except RecursionError:  # only if little stack was left
        raise ValueError("nested too deeply") from None


def was_cut(value: object) -> bool:
    """Tell whether something was cut from a decoded value (or it has the same text by chance)."""
    if isinstance(value, dict):
        return any(map(was_cut, value.values()))
    if isinstance(value, list):
        return any(map(was_cut, value))
    return value == CUT


def _may_be_deep(text: bytes) -> bool:
    """Tell whether there may be more than MAX_DEPTH levels: quick, and exact unless strings hold odd brackets."""
    brackets = text.translate(_AS_SQUARE, _OTHERS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost level goes
    return bool(brackets)


def _shallow(words: str) -> tuple[str, bool]:
    """Return the text with CUT for what is too deep, and whether there was any. Linear in time."""
    parts: list[str] = []
    depth = copied = 0  # everything before `copied` is in `parts`
    for token in _TOKEN.finditer(words):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    parts += (words[copied : token.start()], f'"{CUT}"')
            case "]" | "}":
                depth -= 1
                if depth == MAX_DEPTH:
                    copied = token.end()
    if not parts:
        return words, False
    return "".join((*parts, words[copied:] if depth <= MAX_DEPTH else "")), True


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _DIGITS else TOO_LONG


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_PATIENT = json.JSONDecoder(parse_constant=_no_number, parse_int=_integer)
