"""The language check: what it reports, and that its list of exceptions can only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from devtools import language

MODULE = '''"""Nobody reads this."""


def rows(found, tables):
    one = tables[0]
    for kept in tables:
        gateway = kept
    return [said for said in found if (left := said)]


class Role:
    """Whoever."""

    lost: int = 0
    more = 1
'''


def project(root: Path, **texts: str) -> Path:
    """Write modules of mcagent, and a page."""
    for source in (*language.SOURCES, "docs"):
        (root / source).mkdir()
    for page in language.PAGES[:-1]:
        (root / page).write_text("")
    for name, text in texts.items():
        (root / "mcagent" / f"{name}.py").write_text(text)
    return root


def test_empty_names_and_vague_words_are_counted() -> None:
    """Variables of loops and comprehensions count, parameters and fields; other attributes of a class do not."""
    words = Counter((*language.empty_names(ast.parse(MODULE)), *language.vague_words(MODULE)))
    assert words == dict.fromkeys(("found", "one", "kept", "said", "left", "lost", "nobody", "whoever"), 1)
    assert language.share([ast.parse("def a(found, b, c, d): ...")]) == "25.00 % of 4 names"


def test_a_class_name_of_two_modules_is_reported(tmp_path: Path) -> None:
    """Private classes, those of development tools, and those of tests may have any name."""
    root = project(
        tmp_path, first="class Role: ...\nclass _Step: ...\n", second="class Role: ...\nclass _Step: ...\n"
    )
    for source in ("devtools", "tests"):
        (root / source / "third.py").write_text("class Role: ...\n")
    assert language.all_faults(language.read_trees(root), root) == Counter(
        {("mcagent/second.py", "class Role"): 1}
    )


def test_pages_are_checked(tmp_path: Path) -> None:
    """Words of pages count like those of code, without names in code spans."""
    root = project(tmp_path)
    (root / "docs/page.md").write_text("Somebody sends; someone's reply. Nobody? `blocks_nobody`\n")
    assert language.all_faults(language.read_trees(root), root) == {
        ("docs/page.md", word): 1 for word in ("somebody", "someone", "nobody")
    }


def test_the_list_may_only_shrink() -> None:
    """More than listed fails and names the file; fewer fails until the list is lowered."""
    allowed = Counter({("a.py", "one"): 2, ("b.py", "found"): 1})
    assert language.messages(allowed, allowed) == []
    (message,) = language.messages(allowed + Counter({("a.py", "one"): 1}), allowed)
    assert message.startswith('a.py: 3 times "one", allowed: 2')
    (message,) = language.messages(Counter({("a.py", "one"): 1}), allowed)
    assert "2 numbers can be lowered" in message


def test_the_list_is_read_as_written() -> None:
    """Words may have a space."""
    faults = Counter({("a.py", "class Role"): 1, ("docs/b.md", "nobody"): 12})
    assert language.read_allowed(language.write_allowed(faults)) == faults
