"""The generator of attacks finds none, and finds each again when its protection is removed."""

from __future__ import annotations

import pytest

from tests.attacks.generated.classes import CLASSES
from tests.attacks.generated.search import AttackClass, search

PROTECTIONS = [
    pytest.param(attacks, protection, id=f"{attacks.name}-{protection.replace(' ', '-')}")
    for attacks in CLASSES
    for protection in attacks.protections
]
KNOWN = (
    "A1",
    "A2",
    "A3",
    "A5",
    "A6",
    "A7",
    "A8",
    "A9",
    "A10",
    "A11",
    "A12",
    "A13",
    "A14",
    "A15",
    "A16",
    "N1",
    "N5",
    "N6",
    "(p)",
)


@pytest.mark.parametrize("attacks", CLASSES, ids=lambda attacks: attacks.name)
def test_no_generated_attack_succeeds(attacks: AttackClass) -> None:
    """The same examples on every run."""
    result = search(attacks, examples=attacks.short)
    assert result.violation == ""
    assert result.examples == attacks.short


@pytest.mark.parametrize(("attacks", "protection"), PROTECTIONS)
def test_an_attack_is_found_without_its_protection(attacks: AttackClass, protection: str) -> None:
    """Within the class's number of examples; with the protection that example is none."""
    with attacks.protections[protection]():
        result = search(attacks, examples=attacks.examples)
    assert result.violation != "", f"{result.examples} examples"
    assert attacks.judge(result.attack) == "", "the example violates the property with the protection, too"


def test_every_class_is_generated() -> None:
    """All classes that are known have a generator; each generator has a protection."""
    names = [attacks.name for attacks in CLASSES]
    assert set(KNOWN) == set(names) - {"sources"}
    assert all(attacks.protections for attacks in CLASSES)
