"""Fields that several kinds of objects have: networks, addresses, protocols, labels; and what is reported of them.

Owns what is an error in such a field, and what is only told while the object is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.net import Address, Network
from mcagent.model.objects import IpProtocol
from mcagent.model.problem import Problem, Severity

_Value = TypeVar("_Value")


def problem_of(error: InputError) -> Problem:
    """Return the error as the value that is kept beside the last good version of the object."""
    return Problem(subject=error.subject, path=error.path, reason=error.code, message=error.reason)


def network(field: Field, problems: list[Problem]) -> Network:
    """Return the CIDR, masked; host bits are reported."""
    found, host_bits = field.network()
    if host_bits:
        problems.append(
            Problem(
                subject=field.subject,
                path=field.path,
                reason="HostBitsSet",
                message=f'host bits are set in "{printable(field.text())}": used as {found}',
                severity=Severity.WARNING,
            )
        )
    return found


def networks(field: Field, problems: list[Problem]) -> tuple[Network, ...]:
    """Return the distinct CIDRs in order; empty strings are passed over (Antrea's sample has `podCIDRs: [""]`)."""
    found: dict[Network, None] = {}
    for item in field.each():
        if item.value != "":
            found[network(item, problems)] = None
    return tuple(found)


def optional_network(field: Field, problems: list[Problem]) -> Network | None:
    """Return the CIDR, None where there is none."""
    return None if field.absent or field.value == "" else network(field, problems)


def optional_address(field: Field, problems: list[Problem]) -> Address | None:
    """Return the address; a wrong one is reported and passed over: it must not take the Node away."""
    if field.absent or field.value == "":
        return None
    try:
        return field.address()
    except InputError as error:
        problems.append(replace(problem_of(error), severity=Severity.WARNING))
        return None


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


def protocol(field: Field) -> IpProtocol:
    """Return the protocol; TCP where there is none, as the API says."""
    text = field.text("TCP")
    try:
        return IpProtocol(text or "TCP")
    except ValueError:
        raise field.error(f'must be TCP, UDP or SCTP, is "{printable(text)}"', "InvalidProtocol") from None


def labels(raw: Field) -> dict[str, str]:
    """Return the labels of an object."""
    field = raw.get("metadata").get("labels")
    names = field.value if isinstance(field.value, Mapping) else ()
    return {str(name): field.get(name).text() for name in names}
