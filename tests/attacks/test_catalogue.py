"""The catalogue is whole: every attack says what it is, and docs/security.md has them all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.attacks.catalogue import Group, attack_of, functions, shown
from tests.attacks.security_page import filled

PAGE = Path(__file__).parents[2] / "docs/security.md"


def test_every_test_says_which_attack_it_is() -> None:
    """Each test here carries its attack, but for those of this file."""
    silent = [
        name for name, test in functions() if attack_of(test) is None and not name.startswith(Path(__file__).name)
    ]
    assert silent == []


def test_no_two_attackers_want_the_same() -> None:
    """Each attack is one of its own, and every group has some."""
    twice = [
        wants
        for wants, count in Counter(shown_attack.attack.wants for shown_attack in shown()).items()
        if count > 1
    ]
    assert twice == []
    assert {shown_attack.attack.group for shown_attack in shown()} == set(Group)


def test_the_page_is_current() -> None:
    """docs/security.md lists the attacks as the tests have them."""
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text, "run: make docs"
