"""Engine: memoises functions from one compilation to the next.

`call` returns the value of a function and calls it only if an argument changed since the last pass. `each` does
the same for every key of a mapping on its own: one cluster, Node or Service that changes costs one call. The
memory of a call is found by the function and by how many calls of it the pass made before, so a step that is
left out in one pass costs the later calls of the same function one computation, never a wrong value. What a pass
does not use is forgotten.

A new value that equals the last one is replaced by it (equality cut-off). An unchanged value is therefore the same
object from pass to pass, and comparing it costs nothing.

Only this module knows that there was an earlier pass. A pass with memory gives what a pass without it gives if
functions depend on their arguments alone, do not change them, and do not depend on the order of a mapping's keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_ABSENT = object()


class _Memory:
    """The arguments and the value of the last call. `values`: for `each`, the mapping it was called with."""

    __slots__ = ("arguments", "value", "values")

    def __init__(self) -> None:
        self.arguments: tuple[object, ...] | None = None
        self.values: Mapping[Any, Any] = {}
        self.value: Any = None


class Engine:
    """The memory of a chain of passes, for one thread.

    Exceptions of a function pass through. The engine must be discarded then: its pass is incomplete.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _Memory] = {}
        self._current: dict[Hashable, _Memory] = {}
        self._calls: Counter[Hashable] = Counter()

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Delimit a pass. What it does not call is forgotten at its end."""
        self._current, self._calls = {}, Counter()
        yield
        self._last = self._current

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`."""
        memory = self._memory("call", function)
        arguments = (args, kwargs)
        if memory.arguments != arguments:
            value = function(*args, **kwargs)
            if memory.value != value:
                memory.value = value
        memory.arguments = arguments
        result: T = memory.value
        return result

    def each(
        self,
        function: Callable[Concatenate[V, P], T],
        values: Mapping[K, V],
        *shared: P.args,
        **kwargs: P.kwargs,
    ) -> Mapping[K, T]:
        """Return `function(value, *shared, **kwargs)` by key."""
        memory = self._memory("each", function)
        arguments = (shared, kwargs)
        last_results: Mapping[K, T] = memory.value or {}
        last_values = memory.values if memory.arguments == arguments else {}
        if last_values is values:
            return last_results
        results: dict[K, T] = {}
        for key, value in values.items():
            last = last_values.get(key, _ABSENT)
            if last is value or last == value:
                results[key] = last_results[key]
                continue
            result = function(value, *shared, **kwargs)
            results[key] = last_results[key] if last_results.get(key, _ABSENT) == result else result
        memory.arguments, memory.values = arguments, values
        if results != memory.value:
            memory.value = results
        unchanged_or_new: Mapping[K, T] = memory.value
        return unchanged_or_new

    def _memory(self, kind: str, function: Hashable) -> _Memory:
        number = self._calls[kind, function]
        self._calls[kind, function] += 1
        place = (kind, function, number)
        memory = self._current[place] = self._last.get(place) or _Memory()
        return memory


def joined(first: Mapping[K, V], *others: Mapping[K, Any]) -> dict[K, tuple[V, *tuple[Any, ...]]]:
    """Return the values of several mappings together, by the keys of the first; None where another has none."""
    columns = [map(other.get, first) for other in others]
    return dict(zip(first, zip(first.values(), *columns, strict=True), strict=True))
