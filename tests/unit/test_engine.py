"""The incremental engine: it gives what a pass from scratch gives, and computes only what a change affects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.engine import IncrementalEngine

# A random program: each step combines two earlier values and rounds the result, so that changes are often cut off,
# or does the same for each key of the input. Values are maps of numbers; the first one is the input.
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9), st.sampled_from([1, 2, 5, 1000])), max_size=8
)
INPUTS = st.lists(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6), max_size=5), min_size=1, max_size=6)
Numbers = Mapping[str, int]


class Program:
    """Runs a program; `calls` are those of the computations since the last pass began."""

    def __init__(self, steps: list[tuple[bool, int, int, int]]) -> None:
        self._steps = steps
        self.calls: list[tuple[object, ...]] = []

    def whole(self, step: int, first: Numbers, second: Numbers, divisor: int) -> Numbers:
        """Combine two values."""
        self.calls.append((step, dict(first), dict(second)))
        return {"sum": (sum(first.values()) + sum(second.values())) // divisor}

    def one(self, value: tuple[str, int, int | None], step: int, divisor: int) -> int:
        """Combine two numbers of one key."""
        self.calls.append((step, value))
        _, first, second = value
        return (first + (second or 0)) // divisor

    def run(self, engine: IncrementalEngine, source: Numbers) -> list[Numbers]:
        """Do one pass; return the values of all steps."""
        self.calls = []
        values: list[Numbers] = [source]
        with engine.one_pass():
            for step, (keyed, a, b, divisor) in enumerate(self._steps):
                first, second = values[a % len(values)], values[b % len(values)]
                if keyed:
                    joined = engine.join({key: key for key in first}, first, second)
                    values.append(engine.each(self.one, joined, step, divisor))
                else:
                    values.append(engine.call(self.whole, step, first, second, divisor))
        return values


@given(STEPS, INPUTS)
def test_a_pass_gives_what_a_pass_from_scratch_gives(
    steps: list[tuple[bool, int, int, int]], inputs: list[Numbers]
) -> None:
    """After any changes of the input, also when keys come and go."""
    program, engine = Program(steps), IncrementalEngine()
    for source in inputs:
        assert program.run(engine, source) == program.run(IncrementalEngine(), source)


@given(STEPS, INPUTS)
def test_what_has_the_input_of_the_last_pass_is_not_computed(
    steps: list[tuple[bool, int, int, int]], inputs: list[Numbers]
) -> None:
    """Neither a call nor a key; and an equal value is the very object of the last pass."""
    program, engine = Program(steps), IncrementalEngine()
    before: list[Numbers] = []
    scratch: list[tuple[object, ...]] = []
    for source in inputs:
        values = program.run(engine, source)
        calls = program.calls
        assert all(call not in scratch for call in calls)
        program.run(IncrementalEngine(), source)
        assert all(call in program.calls for call in calls)
        scratch = program.calls
        assert all(new is old for new, old in zip(values[1:], before[1:], strict=False) if new == old)
        before = values


def test_a_changed_key_costs_one_call() -> None:
    """A change of what all keys share costs one for each, and what comes out equal is the object of before."""
    engine, calls = IncrementalEngine(), []

    def shown(number: int, base: int) -> tuple[int, ...]:
        calls.append(number)
        return (number // base,)

    def run(values: Numbers, base: int) -> Mapping[str, tuple[int, ...]]:
        calls.clear()
        with engine.one_pass():
            return engine.each(shown, values, base)

    first = run({"a": 1, "b": 20, "c": 30}, 10)
    assert calls == [1, 20, 30]
    second = run({"a": 1, "b": 50, "c": 30}, 10)
    assert calls == [50]
    assert second["c"] is first["c"]
    assert run({"a": 1, "b": 51, "c": 30}, 10) is second
    third = run({"a": 1, "c": 30}, 15)
    assert calls == [1, 30]
    assert third == {"a": (0,), "c": (2,)}
    assert third["a"] is first["a"]


def test_what_a_pass_does_not_use_is_forgotten() -> None:
    """A call that comes back is computed again."""
    engine = IncrementalEngine()
    calls: list[int] = []
    for used in (True, True, False, True):
        with engine.one_pass():
            if used:
                engine.call(calls.append, 1)
    assert calls == [1, 1]


def test_calls_of_one_function_in_a_pass_have_separate_memory() -> None:
    """They are told apart by their order, whatever their arguments; one that is left out costs a computation."""
    engine, calls = IncrementalEngine(), []

    def double(number: int) -> tuple[int, ...]:
        calls.append(number)
        return (2 * number,)

    def run(*numbers: int) -> list[tuple[int, ...]]:
        calls.clear()
        with engine.one_pass():
            return [engine.call(double, number) for number in numbers]

    first = run(1, 2, 3)
    second = run(1, 2, 3)
    assert first == second == [(2,), (4,), (6,)]
    assert calls == []
    assert all(new is old for new, old in zip(second, first, strict=True))
    assert run(1, 3) == [(2,), (6,)]
    assert calls == [3]


def test_one_function_may_be_called_for_one_value_and_for_each_of_several() -> None:
    """The memory of both is separate, also if one of them is left out in a pass."""
    engine = IncrementalEngine()

    def double(number: int) -> int:
        return 2 * number

    for single in (True, False, True):
        with engine.one_pass():
            assert not single or engine.call(double, 1) == 2
            assert engine.each(double, {"a": 2}) == {"a": 4}
            assert engine.call(double, 3) == 6


def test_equal_elements_of_a_changed_tuple_are_the_same_objects() -> None:
    """Where one resource of a cluster changed, the others need no comparison; a longer tuple is complete."""

    def texts(value: int, count: int) -> tuple[tuple[str, int], ...]:
        return (("first", 1), ("changed", value), *(("further", number) for number in range(count)))

    engine = IncrementalEngine()
    results = []
    for value, count in ((1, 2), (2, 2), (2, 3), (3, 1)):
        with engine.one_pass():
            results.append(engine.each(texts, {"key": value}, count)["key"])
        assert results[-1] == texts(value, count)
    for before, after in pairwise(results):
        pairs = list(zip(before, after, strict=False))
        assert [old is new for old, new in pairs] == [old == new for old, new in pairs]
