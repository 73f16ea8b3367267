"""Regular expressions whose time is a power of the length are found, others are left alone (`make lint`)."""

from __future__ import annotations

import ast
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devtools.patterns import all_faults, uses
from devtools.repetition import fault

ENOUGH = 0.05  # seconds of processor time: a linear pattern takes a thousandth of that for LONGEST characters
LONGEST = 2000


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+", r"(a*b?)*", r"(?:(?:ab)*c?)*x", r"(a|b|ab)*", r"(\w|\d\d)*", r"([a-z]+,?)*"),
        *(r"a*a*", r"\S+@\S+", r"\d+\.?\d+", r".*:.*", r"(a+)?(b+)?a+", r"a*(?:b|ca*)a*", r"(?i:[a-z]*)A*x"),
        r"([!-9;-~]+):[ \t]*([\t -~]*)[ \t]*",
    ],
)
def test_ambiguous_repetition_is_found(pattern: str) -> None:
    """Repetitions inside and beside each other, and alternatives, that accept the same text."""
    assert fault(pattern, 0, searching=False)


@pytest.mark.parametrize("pattern", [r"a+b", r"\s+$", r"(?m)^\s+x", r'"(?:\\.|[^"\\])*"', r"[\w.-]*token"])
def test_a_search_that_begins_anew_is_found(pattern: str) -> None:
    """A search tries the repetition at each character; a match of the whole text does not."""
    assert fault(pattern, 0, searching=True)
    assert not fault(pattern, 0, searching=False)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", r"x=(\d+) y=(\d+)$", r"(\.[a-z]([-a-z]*[a-z])?)*", r"^a+$"),
        *(r"\[([^\[\]]*)\]", r'"[^"\\]*+(?:\\.[^"\\]*+)*+', r"(-----BEGIN X-----[A-Z\s]+-----END X-----\s*)+"),
        *(r"(?>a+)a*", r"(\d+)(?:-(\d+))? ", r"ns:([^&]*)&pod:([^&]*)", r"(?m)^a.{0,200}?b"),
    ],
)
def test_linear_patterns_are_left_alone(pattern: str) -> None:
    """Repetitions that something separates, possessive and bounded ones."""
    assert not fault(pattern, 0, searching=pattern.startswith(("x=", "^", r"\[", "(?m)")))


def _compound(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(parts, min_size=2, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda texts: f"(?:{'|'.join(texts)})"),
        st.tuples(parts, st.sampled_from(("*", "+", "?", "*?", "*+"))).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(st.sampled_from(("a", "b", "[ab]", ".", "[^a]", "x", "$")), _compound, max_leaves=8)


@pytest.mark.costly
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PATTERNS, st.booleans())
def test_a_pattern_without_a_fault_is_linear(pattern: str, searching: bool) -> None:
    """Whatever is generated: a pattern in which nothing is found reads each repeated text in a short time."""
    if fault(pattern, 0, searching=searching):
        return
    compiled = re.compile(pattern)
    read = compiled.search if searching else compiled.fullmatch
    for repeated in ("a", "b", "ab", "aab", "xa", "abx"):
        for length in (8, 12, 16, 20, 24, 30, 300, LONGEST):
            text = repeated * (length // len(repeated)) + "\n!"
            times = [_seconds(read, text)]
            while min(times) >= ENOUGH and len(times) < 3:
                times.append(_seconds(read, text))
            assert min(times) < ENOUGH, f"{pattern!r}, {length} characters of {repeated!r}: {times}"


def _seconds(read: object, text: str) -> float:
    before = time.thread_time()
    read(text)  # type: ignore[operator]
    return time.thread_time() - before


MODULE = """
import re
_PART = r"\\d+"
_ONE, _TWO = re.compile(rf"{_PART}x"), re.compile("b", re.I | re.DOTALL)
_WHOLE = re.compile(r"a+b")

def read(text, word):
    if _WHOLE.fullmatch(text) or _TWO.search(text) or re.match(word, text):
        return re.sub(rf"{re.escape(word)}-{word}+", "", text, flags=re.MULTILINE)
"""


def test_patterns_are_found_in_a_module() -> None:
    """Compiled or used at once, with flags, made of constants; local variables stand for plain text."""
    names: dict[str, object] = {}
    exec(MODULE, names)
    uses_by_pattern = {use.pattern: use for use in uses(ast.parse(MODULE), names)}
    assert sorted(map(str, uses_by_pattern)) == ["\\d+x", "a+b", "b", "x-x+"]
    assert not uses_by_pattern["a+b"].searching
    assert uses_by_pattern["b"].searching
    assert uses_by_pattern["b"].flags == re.IGNORECASE | re.DOTALL
    assert (uses_by_pattern["x-x+"].name, uses_by_pattern["x-x+"].flags) == ("read", re.MULTILINE)
    assert uses_by_pattern["\\d+x"].name == "_ONE, _TWO"


def test_the_product_has_none() -> None:
    """As `make lint` says."""
    assert list(all_faults()) == []
