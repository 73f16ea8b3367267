"""The search for attacks: draws examples of a class until one violates its property.

Owns the number of examples and the form of a result. Must not know what an attack is.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, NoSuchExample

Protection = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackClass:
    """A class of attacks: a grammar, and a judge that knows what must never happen.

    `judge` returns the violation, "" without one. `protections`: by what they are, contexts in which the code has
    them not. `examples`: within which the search finds an attack once a protection is removed. `short`: the number
    of examples in the short run.
    """

    name: str  # as in the issue: "A6"
    title: str
    grammar: st.SearchStrategy[Any]
    judge: Callable[[Any], str]
    property: str  # what `judge` states, as a sentence
    protections: Mapping[str, Protection] = field(default_factory=dict)
    examples: int = 300
    short: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found. `examples`: until the first violation, or all. `attack`: that violates the property."""

    examples: int
    violation: str  # with its example; "": none
    attack: Any
    seconds: float


def search(
    attacks: AttackClass, *, examples: int, seed: int = 1, minimal: bool = False, budget: float = math.inf
) -> SearchResult:
    """Judge examples until one violates the property; the same for the same seed.

    `minimal`: reduce that example to the smallest one, which takes longer. `budget`: seconds after which no more
    examples are judged.
    """
    tried = 0
    violation = ""
    last: Any = None  # that violates; with `minimal` the smallest

    def violates(attack: Any) -> bool:
        nonlocal tried, violation, last
        if not violation:
            if time.monotonic() - begin > budget:
                return False
            tried += 1
        reason = attacks.judge(attack)
        if reason:
            violation, last = f"{reason}\n  {attack}", attack
        return reason != ""

    begin = time.monotonic()
    phases = (Phase.generate, Phase.shrink) if minimal else (Phase.generate,)
    options = settings(max_examples=examples, phases=phases, deadline=None, database=None)
    with contextlib.suppress(NoSuchExample, Flaky):  # flaky: packets of a lab may differ when they are sent again
        find(attacks.grammar, violates, settings=options, random=Random(seed))
    return SearchResult(examples=tried, violation=violation, attack=last, seconds=time.monotonic() - begin)
