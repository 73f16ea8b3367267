"""Fragments made of parts, and what is taken over of the last call.

A part has all that it follows from (beside what all fragments share); one whose inputs are the same is the very
object of the last call, and so is an owner all of whose parts are. Knows nothing of what the inputs are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcagent.model.plan import Fragment
from mcagent.model.resources import Resource


@dataclass(frozen=True, slots=True)
class Part:
    """Some resources, and all that they were built from (beside `Shared`)."""

    inputs: tuple[object, ...]
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A fragment and its parts."""

    owner: Fragment
    parts: tuple[Part, ...]


Maker = tuple[tuple[object, ...], Callable[[], list[Resource]]]  # inputs of a part, and what builds it


def take_fragment(owner: str, known: Mapping[str, Built], *makers: Maker) -> Built:
    """Return the owner made of these parts; the owner and each part is the very one known if it is the same."""
    before = known.get(owner)
    old = before.parts if before is not None else ()
    parts = []
    for place, (inputs, make) in enumerate(makers):
        if place < len(old) and old[place].inputs == inputs:
            parts.append(old[place])
        else:
            parts.append(Part(inputs, tuple(make())))
    if before is not None and len(parts) == len(old) and all(map(operator.is_, parts, old)):
        return before
    resources = tuple(resource for part in parts for resource in part.resources)
    return Built(Fragment(owner=owner, resources=resources), tuple(parts))


def different(new: Mapping[str, object], old: Mapping[str, object]) -> set[str]:
    """Return the keys whose values are not the same objects (or equal numbers), or that only one side has."""
    found = {key for key, value in new.items() if old.get(key) is not value}
    return found | (old.keys() - new.keys())
