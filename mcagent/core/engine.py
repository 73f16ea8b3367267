"""The incremental engine: memoises functions from one compilation to the next.

`call` returns the value of a function and calls it only if an argument changed since the last pass. `each` does
this for each key of a mapping separately: a change of one cluster, Node or Service costs one call. The key of a
memory is the function and the number of its earlier calls in the pass. So a step that one pass omits costs later
calls of the same function one computation, but never gives a wrong value. Memories that a pass does not use are
dropped.

If a new value equals the last one, the last one is returned (equality cut-off). So an unchanged value is the same
object in each pass, and comparing it is cheap. Elements of the tuples that `each` makes are kept in the same way:
if all tunnels change, clusters keep the flows that do not. The keys whose values changed are passed on from a
mapping to those that `each` and `join` make of it, so a change of one cluster of a thousand is not searched for in
every step.

Only this module knows that there was an earlier pass. A pass with memories and a pass without give equal results
if functions depend only on their arguments, do not modify them, and do not depend on the order of a mapping's
keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

P = ParamSpec("P")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
V2 = TypeVar("V2")
V3 = TypeVar("V3")
V4 = TypeVar("V4")
V5 = TypeVar("V5")

_ABSENT = object()


class _Memory:
    """The arguments and the value of the last call. `mappings`: the mapping arguments of `each` and `join`."""

    __slots__ = ("arguments", "mappings", "value")

    def __init__(self) -> None:
        self.arguments: tuple[object, ...] | None = None
        self.mappings: tuple[Mapping[Any, Any], ...] = ()
        self.value: Any = None


class IncrementalEngine:
    """The memory of a chain of passes, for one thread.

    Exceptions of a function propagate. The engine must then be discarded, since its pass is incomplete.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _Memory] = {}
        self._current: dict[Hashable, _Memory] = {}
        self._calls: Counter[Hashable] = Counter()
        # By the ID of a mapping of this pass: that of the last pass, and the keys that differ.
        self._changes: dict[int, tuple[Mapping[Any, Any], Collection[Any]]] = {}

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Delimit a pass. Memories that it did not use are dropped at its end."""
        self._current, self._calls, self._changes = {}, Counter(), {}
        yield
        self._last, self._changes = self._current, {}

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
        last_values: Mapping[K, V] = {}
        changed = None
        if memory.arguments == arguments:
            last_values = memory.mappings[0]
            changed = self._changed_keys(last_values, values)
        memory.arguments, memory.mappings = arguments, (values,)
        if changed is not None:
            return self._updated(memory, {key: function(values[key], *shared, **kwargs) for key in changed})
        results: dict[K, T] = {}
        for key, value in values.items():
            last = last_values.get(key, _ABSENT)
            if last is value or last == value:
                results[key] = last_results[key]
                continue
            result = function(value, *shared, **kwargs)
            results[key] = _with_last_elements(last_results[key], result) if key in last_results else result
        return self._replaced(memory, results)

    @overload
    def join(self, first: Mapping[K, V], second: Mapping[K, V2], /) -> Mapping[K, tuple[V, V2]]: ...
    @overload
    def join(
        self, first: Mapping[K, V], second: Mapping[K, V2], third: Mapping[K, V3], /
    ) -> Mapping[K, tuple[V, V2, V3]]: ...
    @overload
    def join(
        self, first: Mapping[K, V], second: Mapping[K, V2], third: Mapping[K, V3], fourth: Mapping[K, V4], /
    ) -> Mapping[K, tuple[V, V2, V3, V4]]: ...
    @overload
    def join(
        self, *mappings: *tuple[Mapping[K, V], Mapping[K, V2], Mapping[K, V3], Mapping[K, V4], Mapping[K, V5]]
    ) -> Mapping[K, tuple[V, V2, V3, V4, V5]]: ...
    def join(self, first: Mapping[K, V], *others: Mapping[K, Any]) -> Mapping[K, tuple[Any, ...]]:
        """Join mappings by the keys of the first one into tuples.

        A value is None for a key that another mapping lacks, which the types do not show.
        """
        memory = self._memory("join", len(others))
        mappings = (first, *others)
        changes = [self._changed_keys(*pair) for pair in zip(memory.mappings, mappings, strict=False)]
        memory.mappings = mappings
        if changes and None not in changes:
            keys = [key for keys in changes for key in keys or () if key in first]
            return self._updated(
                memory, {key: (first[key], *(other.get(key) for other in others)) for key in keys}
            )
        columns = [map(other.get, first) for other in others]
        rows = zip(first.values(), *columns, strict=True)
        return self._replaced(memory, dict(zip(first, rows, strict=True)))

    def _changed_keys(self, last: Mapping[K, V], current: Mapping[K, V]) -> Collection[K] | None:
        """Return the keys whose values differ; None if there are other keys, or in another order."""
        if last is current:
            return ()
        base, changed = self._changes.get(id(current), (None, ()))
        if base is last:
            return changed
        if list(last) != list(current):
            return None
        pairs = zip(current, last.values(), current.values(), strict=True)
        keys = [key for key, old, new in pairs if old is not new and old != new]
        self._changes[id(current)] = (last, keys)
        return keys

    def _updated(self, memory: _Memory, results: Mapping[K, T]) -> Mapping[K, T]:
        """Put the results of some keys into the value of a memory."""
        last: Mapping[K, T] = memory.value
        merged = {key: _with_last_elements(last[key], result) for key, result in results.items()}
        changed = {key: result for key, result in merged.items() if last[key] is not result}
        if not changed:
            return last
        current = memory.value = {**last, **changed}
        self._changes[id(current)] = (last, changed)
        return current

    def _replaced(self, memory: _Memory, results: Mapping[K, T]) -> Mapping[K, T]:
        """Replace the value of a memory, unless the results equal it."""
        if memory.value is None or memory.value != results:
            memory.value = results
        current: Mapping[K, T] = memory.value
        return current

    def _memory(self, kind: str, function: Hashable) -> _Memory:
        number = self._calls[kind, function]
        self._calls[kind, function] += 1
        place = (kind, function, number)
        memory = self._current[place] = self._last.get(place) or _Memory()
        return memory


def _with_last_elements(last: Any, result: Any) -> Any:
    """Return `last` if it equals `result`; else `result`, with the equal elements of `last` if both are tuples."""
    if last == result:
        return last
    if type(last) is not tuple or type(result) is not tuple:
        return result
    elements = [old if old == new else new for old, new in zip(last, result, strict=False)]
    return (*elements, *result[len(elements) :])
