"""Fields that several kinds of objects have: networks, addresses, protocols, labels; and what is reported of them.

Owns what is an error in such a field, and what is only told while the object is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from mcagent.model.api.base import ApiObject
from mcagent.model.errors import InputError
from mcagent.model.net import Address, Network
from mcagent.model.parsing.field import MAX_ITEMS, Field, printable
from mcagent.model.problem import Problem, Severity

_Value = TypeVar("_Value")


def problem_of(error: InputError) -> Problem:
    """Return the error as the value that is kept beside the last good version of the object."""
    return Problem(subject=error.subject, path=error.path, reason=error.code, message=error.reason)


def network(field: Field, problems: list[Problem]) -> Network:
    """Return the CIDR, masked; host bits are reported."""
    masked, host_bits = field.network()
    if host_bits:
        problems.append(
            Problem(
                subject=field.subject,
                path=field.path,
                reason="HostBitsSet",
                message=f'host bits are set in "{printable(field.text())}": used as {masked}',
                severity=Severity.WARNING,
            )
        )
    return masked


def bounded(
    items: Sequence[_Value], subject: str, path: str, limit: int = MAX_ITEMS
) -> Iterable[tuple[int, _Value]]:
    """Return the items of a list with their numbers. InputError when it is too long."""
    if len(items) > limit:
        raise Field(subject, None, path).error(f"has {len(items)} entries, at most {limit} allowed", "TooMany")
    return enumerate(items)


def networks(texts: Sequence[str], subject: str, path: str, problems: list[Problem]) -> tuple[Network, ...]:
    """Return the distinct CIDRs in order; empty strings are passed over (Antrea's sample has `podCIDRs: [""]`)."""
    fields = (Field(subject, text, f"{path}[{number}]") for number, text in bounded(texts, subject, path) if text)
    return tuple(dict.fromkeys(network(field, problems) for field in fields))


def addresses(texts: Sequence[str], subject: str, path: str, *, allow_empty: bool = True) -> tuple[Address, ...]:
    """Return the distinct addresses in order; empty strings are passed over, unless they are no addresses here."""
    rows = bounded(texts, subject, path)
    fields = (Field(subject, text, f"{path}[{number}]") for number, text in rows if text or not allow_empty)
    return tuple(dict.fromkeys(field.address() for field in fields))


def optional_network(field: Field, problems: list[Problem]) -> Network | None:
    """Return the CIDR, None where there is none."""
    return network(field, problems) if field.value else None


def optional_address(field: Field, problems: list[Problem]) -> Address | None:
    """Return the address; a wrong one is reported and passed over: it must not take the Node away."""
    if not field.value:
        return None
    try:
        return field.address()
    except InputError as error:
        problems.append(replace(problem_of(error), severity=Severity.WARNING))
        return None


def annotation(obj: ApiObject, key: str) -> Field:
    """Return an annotation; absent when there is none."""
    return Field(obj.subject, obj.annotation(key), f"metadata.annotations.{key}")


def read_or(field: Field, problems: list[Problem], read: Callable[[str], _Value], default: _Value) -> _Value:
    """Return what an annotation says; one that makes no sense is reported, and counts as none."""
    if field.absent:
        return default
    try:
        return read(field.text())
    except ValueError as error:
        wrong = field.error(str(error))
    except InputError as error:
        wrong = error
    problems.append(replace(problem_of(wrong), severity=Severity.WARNING))
    return default
