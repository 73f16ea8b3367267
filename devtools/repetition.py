"""Ambiguous repetition in a regular expression, by which a failing match takes a power of the length of the text.

A text can then be read in several ways: by two repetitions that accept the same (`\\S+@\\S+`, `(a+)*`), by
alternatives inside one (`(a|b|ab)*`), or by a repetition and a search that tries each character (`a+b`). If the
rest does not match, all ways are tried. The pattern becomes an automaton without empty steps (Glushkov), whose
ambiguity is exponential if a state returns to itself by two ways with one text, and polynomial if two states
return to themselves, and the first leads to the second, with one text. Assertions count as fulfilled, and bounded
repetitions as of two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_MANY = 1000  # a bounded repetition of more counts as unbounded
_BEGINNINGS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_END = 256  # stands for the end of the text, which `$` needs

Chars = frozenset[int]
ALL: Chars = frozenset(range(256))  # other characters count as the last one
_SPACES = frozenset(map(ord, " \t\n\r\f\v"))
_DIGITS = frozenset(range(48, 58))
_WORDS = frozenset(code for code in ALL if chr(code).isalnum()) | {95}
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: ALL - _DIGITS,
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: ALL - _SPACES,
    sre.CATEGORY_WORD: _WORDS,
    sre.CATEGORY_NOT_WORD: ALL - _WORDS,
}


class Part(NamedTuple):
    """A part of a pattern: whether it matches nothing, too, and the states with which it begins and ends."""

    empty: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


class Automaton:
    """The states of a pattern, one for each place of a character, and the steps between them."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self.chars: list[Chars] = []
        self.steps: defaultdict[int, set[int]] = defaultdict(set)
        self.atomic: list[range] = []  # states of a part that is not read in another way once it has ended
        self.before = 0  # the number of states that stand for the text before a match
        self.asserts = False  # whether there are assertions after its begin
        self.repeated_step = False  # a step that two repetitions make, or an empty text that is read in two ways

    def state(self, chars: Chars) -> Part:
        """Return a new state for one of these characters."""
        self.chars.append(chars)
        new = frozenset({len(self.chars) - 1})
        return Part(False, new, new)

    def sequence(self, items: Iterable[Any]) -> Part:
        """Return the part that a sequence is."""
        whole = Part(True)
        for item in items:
            whole = self._then(whole, self._part(*item))
        return whole

    def _then(self, part: Part, other: Part) -> Part:
        self._connect(part.last, other.first)
        first = part.first | other.first if part.empty else part.first
        return Part(part.empty and other.empty, first, part.last | other.last if other.empty else other.last)

    def _connect(self, last: Iterable[int], first: Iterable[int]) -> None:
        for state, next_state in product(last, first):
            self.repeated_step |= next_state in self.steps[state]
            self.steps[state].add(next_state)

    def _part(self, op: Any, argument: Any) -> Part:
        begin = len(self.chars)
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            part = self._repeat(*argument)
        elif op is sre.BRANCH:
            parts = [self.sequence(items) for items in argument[1]]
            self.repeated_step |= sum(part.empty for part in parts) > 1
            first = frozenset(state for part in parts for state in part.first)
            last = frozenset(state for part in parts for state in part.last)
            part = Part(any(part.empty for part in parts), first, last)
        elif op is sre.SUBPATTERN:
            flags, self._flags = self._flags, (self._flags | argument[1]) & ~argument[2]
            part = self.sequence(argument[3])
            self._flags = flags
        elif op is sre.ATOMIC_GROUP:
            part = self.sequence(argument)
        elif op is sre.AT and argument in (sre.AT_END, sre.AT_END_STRING):
            part = self.state(frozenset({_END}))
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            self.asserts |= argument not in _BEGINNINGS and bool(self.chars[self.before :])
            part = Part(True)
        else:
            chars = self._chars(op, argument)
            if self._flags & re.IGNORECASE:
                chars |= {ord(other) for code in chars for other in chr(code).swapcase() if ord(other) in ALL}
            part = self.state(chars)
        if op in (sre.POSSESSIVE_REPEAT, sre.ATOMIC_GROUP):
            self.atomic.append(range(begin, len(self.chars)))
        return part

    def _repeat(self, least: int, most: int, items: Any) -> Part:
        part = self.sequence(items)
        self.repeated_step |= part.empty and (most > 1 or not least)
        if most > _MANY:
            self._connect(part.last, part.first)
        elif most > 1:
            second = self.sequence(items)
            part = self._then(part, second if least > 1 else second._replace(empty=True))
        return part if least else part._replace(empty=True)

    def _chars(self, op: Any, argument: Any) -> Chars:
        if op is sre.ANY:
            return ALL if self._flags & re.DOTALL else ALL - {10}
        if op is sre.LITERAL:
            return frozenset({min(argument, 255)})
        if op is sre.NOT_LITERAL:
            return ALL - {argument}
        if op is sre.RANGE:
            return frozenset(range(argument[0], min(argument[1], 255) + 1)) or frozenset({255})
        if op is sre.CATEGORY:
            return _CATEGORIES[argument]
        if op is sre.IN:
            chars = frozenset().union(*(self._chars(*item) for item in argument if item[0] is not sre.NEGATE))
            return ALL - chars if argument[0][0] is sre.NEGATE else chars
        raise NotImplementedError(f"{op} in a pattern")

    # --- ambiguity ------------------------------------------------------------------------------------------

    def together(self, states: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the states to which several states lead with one character."""
        for following in product(*(self.steps[state] for state in states)):
            if frozenset.intersection(*(self.chars[state] for state in following)):
                yield following

    def _ways(self) -> tuple[dict[int, set[int]], list[int]]:
        """Return the states to which each one leads, and those that lead to themselves."""
        ways = {state: reachable(state, lambda state: self.steps[state]) for state in range(len(self.chars))}
        return ways, [state for state, way in ways.items() if state in way]

    def exponential(self) -> bool:
        """Tell whether a state returns to itself by two ways with one text."""
        ways, returning = self._ways()
        for state in returning:

            def following(states: tuple[int, ...], state: int = state) -> Iterator[tuple[int, ...]]:
                return (pair for pair in self.together(states) if state in ways[pair[0]] & ways[pair[1]])

            split = (pair for pair in reachable((state, state), following) if pair[0] != pair[1])
            if any((state, state) in reachable(pair, following) for pair in split):
                return True
        return False

    def polynomial(self, harmless: frozenset[int]) -> bool:
        """Tell whether a state, and one that it leads to, return to themselves with one text.

        Not if one of `harmless` is on the way of the second.
        """
        ways, returning = self._ways()
        for first, second in product(returning, returning):
            # States that lead to each other are exponential if anything.
            if second not in ways[first] or first in ways[second]:
                continue
            if any(second in ways[state] for state in harmless & ways[second]):
                continue
            if any(first in part and second not in part for part in self.atomic):
                continue

            def following(
                states: tuple[int, ...], first: int = first, second: int = second
            ) -> Iterator[tuple[int, ...]]:
                for start, middle, end in self.together(states):
                    if first in ways[start] and second in ways[middle] | {middle} and second in ways[end]:
                        yield start, middle, end

            if (first, second, second) in reachable((first, first, second), following):
                return True
        return False


def reachable(start: Any, following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Return the nodes of a graph that one or more steps lead to."""
    nodes: set[Any] = set()
    waiting = [start]
    while waiting:
        new = set(following(waiting.pop())) - nodes
        nodes |= new
        waiting += new
    return nodes


def fault(pattern: str | bytes, flags: int, *, searching: bool) -> str:
    """Return what is ambiguous in a pattern, or "". `searching`: it is tried at each character of a text."""
    tree = _parser.parse(pattern, flags)
    flags = tree.state.flags
    automaton = Automaton(flags)
    begins = tree[0][1] if len(tree) and tree[0][0] is sre.AT else None
    start = Part(True)
    harmless: frozenset[int] = frozenset()
    if searching and begins is not sre.AT_BEGINNING_STRING and (begins is not sre.AT_BEGINNING or flags & re.M):
        start = automaton.state(ALL)
        automaton.steps[0].add(0)
        if begins is sre.AT_BEGINNING:  # at the begin of a line: after the end of one
            newline = automaton.state(frozenset({10}))
            automaton.steps[0] |= newline.first
            start = newline
    automaton.before = len(automaton.chars)
    whole = automaton.sequence(tree)
    for state in start.last:
        automaton.steps[state] |= whole.first
    if searching and not automaton.asserts:
        harmless = whole.last  # there the search has found a match
    if automaton.repeated_step or automaton.exponential():
        return "a repetition inside a repetition, or alternatives in one, accept the same text"
    if automaton.polynomial(harmless):
        return "two repetitions, or the start of a search and one, accept the same text"
    return ""
