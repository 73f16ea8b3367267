"""What an attack of these tests says of itself: who attacks, what they want, what stops them.

Every test under `tests/attacks` carries one `@attack(...)`. docs/security.md is made from these
(`python -m tests.attacks.security_page`), so the page cannot promise what no test shows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import pytest

HERE = Path(__file__).parent
_Test = TypeVar("_Test", bound=Callable[..., Any])


class Group(StrEnum):
    """What is attacked. The order is that of docs/security.md."""

    ADDRESSES = "Addresses of others"
    TUNNELS = "Tunnels"
    NODES = "Nodes"
    HTTP = "HTTP servers"
    OBJECTS = "Malformed objects"
    QUOTAS = "Resources of the ClusterSet"
    SERVICES = "Services of others"
    POLICIES = "Policies of others"
    ACCESS = "Admission and RBAC"
    STATE = "Connection state"


class Attacker(StrEnum):
    """Who attacks, with what they have."""

    MEMBER = "a member cluster"
    """Writes whatever its token allows into the Common Area, and sends whatever it likes through its gateways."""
    LEADER = "the leader"
    """Writes whatever it likes into the Common Area, as its administrator or an intruder there."""
    POD = "a Pod"
    """Sends whatever packets its network namespace can, unprivileged or as root."""
    USER = "a namespace user"
    """Writes objects in namespaces of its own."""
    NODE = "a compromised Node"
    """Has the agent's token of one Node."""
    PROCESS = "a process on a Node"
    """Runs as a user without any right in the Node's network, as a Pod with hostNetwork does."""
    SITE = "a page of another site"
    """Runs in the browser of an administrator, who can reach the servers."""
    NEIGHBOUR = "a machine on the underlay"
    """Sends packets to Nodes' addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack. `wants` and `stopped_by` are phrases that a sentence can go on with."""

    group: Group
    attacker: Attacker
    wants: str  # an infinitive: "answer for another member's Service by naming its ClusterIP as a gateway"
    stopped_by: str  # a noun phrase: "the leader's claims: an address has one owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An attack with the test that shows it."""

    attack: Attack
    test: str  # "test_addresses.py::test_name"


def attack(group: Group, attacker: Attacker, *, wants: str, stopped_by: str) -> Callable[[_Test], _Test]:
    """Mark a test as one attack."""
    attack = Attack(group=group, attacker=attacker, wants=wants, stopped_by=stopped_by)
    return pytest.mark.attack(attack)


def attack_of(test: Callable[..., Any]) -> Attack | None:
    """Return what a test function says of itself."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "attack"]
    return marks[0].args[0] if marks else None


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every test function under `tests/attacks` with its name, by file and in the order of the file."""
    for file in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.attacks.{file.stem}")
        for name, value in vars(module).items():
            if name.startswith("test_") and callable(value) and value.__module__ == module.__name__:
                yield f"{file.name}::{name}", value


def shown() -> list[Shown]:
    """Return all attacks, by group, in the order of the tests."""
    all_shown = [
        Shown(attack=attack, test=name) for name, test in functions() if (attack := attack_of(test)) is not None
    ]
    order = list(Group)
    return sorted(all_shown, key=lambda one: order.index(one.attack.group))
