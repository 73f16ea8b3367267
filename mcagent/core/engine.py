"""The incremental engine: memoises functions from one compilation to the next.

`call` returns the value of a function and calls it only if an argument changed since the last pass. `each` does
this for each key of a mapping separately: a change of one cluster, Node or Service costs one call. The key of a
memory is the function and the number of its earlier calls in the pass. So a step that one pass omits costs later
calls of the same function one computation, but never gives a wrong value. Memories that a pass does not use are
dropped.

If a new value equals the last one, the last one is returned (equality cut-off). So an unchanged value is the same
object in each pass, and comparing it is cheap.

Only this module knows that there was an earlier pass. A pass with memories and a pass without give equal results
if functions depend only on their arguments, do not modify them, and do not depend on the order of a mapping's
keys.
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
    """The arguments and the value of the last call. `values`: the mapping argument of `each`."""

    __slots__ = ("arguments", "value", "values")

    def __init__(self) -> None:
        self.arguments: tuple[object, ...] | None = None
        self.values: Mapping[Any, Any] = {}
        self.value: Any = None


class IncrementalEngine:
    """The memory of a chain of passes, for one thread.

    Exceptions of a function propagate. The engine must then be discarded, since its pass is incomplete.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _Memory] = {}
        self._current: dict[Hashable, _Memory] = {}
        self._calls: Counter[Hashable] = Counter()

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Delimit a pass. Memories that it did not use are dropped at its end."""
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
        current: Mapping[K, T] = memory.value
        return current

    def _memory(self, kind: str, function: Hashable) -> _Memory:
        number = self._calls[kind, function]
        self._calls[kind, function] += 1
        place = (kind, function, number)
        memory = self._current[place] = self._last.get(place) or _Memory()
        return memory


def joined(first: Mapping[K, V], *others: Mapping[K, Any]) -> dict[K, tuple[V, *tuple[Any, ...]]]:
    """Join mappings by the keys of the first one into tuples; None for a key that another mapping lacks."""
    columns = [map(other.get, first) for other in others]
    return dict(zip(first, zip(first.values(), *columns, strict=True), strict=True))
