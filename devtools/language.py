"""Standard language: `python -m devtools.language [--update]` checks the names and words of the product.

Three checks: local names that say nothing of the value (EMPTY_NAMES), class names that several modules define, and
pronouns in place of an actor (VAGUE_WORDS). tests/language/allowed.txt lists what is left over, with a number for
each file and word. The list may only shrink: a larger number than listed fails, and so does a
smaller one until `--update` has lowered the list. `--update` never raises a number.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = "tests/language/allowed.txt"
SOURCES = ("mcagent", "flows", "devtools")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")
GENERATED = ("docs/reference/", "docs/notes/")  # made from code that is checked itself; measurements of the past

_EMPTY_NAMES = """asked both each every found given had held here kept known left lost made more much none one
others ours rest said seen several some sought taken that theirs there these they this those told used wanted what
which who"""
EMPTY_NAMES = frozenset(_EMPTY_NAMES.split())
"""Names of local variables that say nothing of the value."""

_VAGUE_WORDS = "anybody anyone everybody everyone nobody somebody someone whoever whom whomever"
VAGUE_WORDS = frozenset(_VAGUE_WORDS.split())
"""Words in place of the actor: the component, controller, cluster or user."""

_WORD = re.compile(r"[A-Za-z]+")
_CODE = re.compile(r"`[^`\n]+`")  # of a page: a name, which is checked where it is defined
Fault = tuple[str, str]  # file, word


def class_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of public classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in small letters."""
    return (match[0].lower() for match in _WORD.finditer(text))


def check_module(path: str, text: str) -> Iterator[Fault]:
    """Yield the empty names and vague words of a Python module."""
    names = set()
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= {
                (name.lineno, name.col_offset, name.id)
                for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in EMPTY_NAMES
            }
    yield from ((path, name) for *_, name in names)
    yield from ((path, word) for word in words_of(text) if word in VAGUE_WORDS)


def check_classes(modules: Iterable[tuple[str, str]]) -> Iterator[Fault]:
    """Yield the classes whose name several modules define, once for each further definition."""
    defined: dict[str, str] = {}
    for path, text in modules:
        for name in class_names(ast.parse(text, path)):
            if defined.setdefault(name, path) != path:
                yield path, f"class {name}"


def all_faults(root: Path = ROOT) -> Counter[Fault]:
    """Return the number of faults by file and word."""
    modules = [
        (str(path.relative_to(root)), path.read_text())
        for source in SOURCES
        for path in sorted((root / source).rglob("*.py"))
    ]
    faults: Counter[Fault] = Counter()
    for path, text in modules:
        faults.update(check_module(path, text))
    faults.update(check_classes((path, text) for path, text in modules if not path.startswith("devtools/")))
    for page in PAGES:
        paths = sorted((root / page).rglob("*.md")) if (root / page).is_dir() else [root / page]
        for name, text in ((str(path.relative_to(root)), path.read_text()) for path in paths):
            if not name.startswith(GENERATED):
                faults.update((name, word) for word in words_of(_CODE.sub("", text)) if word in VAGUE_WORDS)
    return faults


def read_allowed(text: str) -> Counter[Fault]:
    """Return the list of what is left over, from lines `FILE: WORD NUMBER`."""
    allowed: Counter[Fault] = Counter()
    for line in text.splitlines():
        path, _, rest = line.partition(": ")
        word, _, number = rest.rpartition(" ")
        allowed[path, word] = int(number)
    return allowed


def write_allowed(faults: Counter[Fault]) -> str:
    """Return the text of the list."""
    return "".join(f"{path}: {word} {number}\n" for (path, word), number in sorted(faults.items()))


def messages(faults: Counter[Fault], allowed: Counter[Fault]) -> list[str]:
    """Return what is wrong, a sentence each."""
    more = [
        f'{path}: {faults[path, word]} times "{word}", allowed: {allowed[path, word]}; name the value or the actor'
        for path, word in sorted(faults)
        if faults[path, word] > allowed[path, word]
    ]
    fewer = sum(faults[fault] < number for fault, number in allowed.items())
    return [*more, *([f"{ALLOWED}: {fewer} numbers can be lowered: run `make language`"] if fewer else [])]


def main() -> int:
    """Compare the project with the list; with `--update` lower the list first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the numbers of the list")
    options = parser.parse_args()
    path = ROOT / ALLOWED
    faults = all_faults()
    allowed = read_allowed(path.read_text()) if path.exists() else faults
    if options.update:
        allowed &= faults
        path.write_text(write_allowed(allowed))
    wrong = messages(faults, allowed)
    print("\n".join(wrong) if wrong else f"{allowed.total()} exceptions are left in {ALLOWED}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
