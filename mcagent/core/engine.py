"""Engine: computes again only what follows from something that changed since the last pass.

A computation is a plain function of values. `cell` calls one and remembers its arguments and its value; in the
next pass it hands the value back while the arguments are equal. `each` does the same for every key of a mapping on
its own: one cluster, Node or Service that changes costs one call. Keys that are gone are forgotten, and so are
cells that a pass did not come by.

A new value that equals the last one is dropped for it (equality cut-off). So an unchanged value is the very same
object from pass to pass, whatever was computed to find that out, and what follows is compared by identity.

Only this module knows that there was an earlier pass. A pass with it gives what a pass from scratch gives if
functions depend on their arguments alone, do not change them, and do not depend on the order of a mapping's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_NOTHING = object()


class _Cell:
    """What a computation was given in its last call, and what it returned. Of `each`: by key."""

    __slots__ = ("arguments", "value", "values")

    def __init__(self) -> None:
        self.arguments: tuple[object, ...] | None = None
        self.values: Mapping[Any, Any] = {}  # of `each`: what the keys had
        self.value: Any = None


class Engine:
    """The cells of one chain of passes. One thread.

    What a computation raises comes through. The engine is of no use then: a pass may have been half done.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Cell] = {}
        self._used: dict[str, _Cell] = {}

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Do one pass inside: cells are computed at most once in it, and those that are not used are forgotten."""
        self._used = {}
        yield
        self._known = self._used

    def cell(self, name: str, compute: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return `compute(*args, **named)`. `name` is the cell's own in a pass."""
        cell = self._cell(name)
        arguments = (compute, args, named)
        if cell.arguments != arguments:
            value = compute(*args, **named)
            if cell.value != value:
                cell.value = value
        cell.arguments = arguments
        found: T = cell.value
        return found

    def each(
        self,
        name: str,
        compute: Callable[Concatenate[V, P], T],
        values: Mapping[K, V],
        *shared: P.args,
        **named: P.kwargs,
    ) -> Mapping[K, T]:
        """Return `compute(value, *shared, **named)` for each key and value."""
        cell = self._cell(name)
        arguments = (compute, shared, named)
        before: Mapping[K, T] = cell.value or {}
        known = cell.values if cell.arguments == arguments else {}
        if known is values:
            return before
        found: dict[K, T] = {}
        for key, value in values.items():
            last = known.get(key, _NOTHING)
            if last is value or last == value:
                found[key] = before[key]
                continue
            new = compute(value, *shared, **named)
            found[key] = before[key] if before.get(key, _NOTHING) == new else new
        cell.arguments, cell.values = arguments, values
        if found != cell.value:
            cell.value = found
        every: Mapping[K, T] = cell.value
        return every

    def _cell(self, name: str) -> _Cell:
        if name in self._used:
            raise ValueError(f'two cells are called "{name}"')
        cell = self._used[name] = self._known.get(name) or _Cell()
        return cell


def joined(first: Mapping[K, V], *others: Mapping[K, Any]) -> dict[K, tuple[V, *tuple[Any, ...]]]:
    """Return the values of several mappings together, by the keys of the first; None where another has none."""
    columns = [map(other.get, first) for other in others]
    return dict(zip(first, zip(first.values(), *columns, strict=True), strict=True))
