"""Standard language: `python -m devtools.language [--update]` checks the names and words of product and tests.

Three checks: names of local variables, parameters and fields that do not say what the value is (EMPTY_NAMES);
class names that several modules of the product define; and pronouns in place of an actor (VAGUE_WORDS).
tests/language/allowed.txt lists the remaining exceptions, with a number for each file and word. The list may only
shrink: a larger number than listed fails, and so does a smaller one until `--update` has lowered the list.
`--update` never raises a number. The last lines are the share of empty names in product and tests.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = "tests/language/allowed.txt"
WORD_LISTS = ("devtools/language.py", "tests/unit/test_language.py")  # they define the words, and test them
PRODUCT = ("mcagent", "flows")
SOURCES = (*PRODUCT, "devtools", "tests")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
GENERATED = ("docs/reference/", "docs/notes/")  # made from code that is checked itself; measurements of the past

_EMPTY_NAMES = """asked both each every found given had held here kept known left lost made more much none one
others ours rest said seen several some sought taken that theirs there these they this those told used wanted what
which who"""
EMPTY_NAMES = frozenset(_EMPTY_NAMES.split())
"""Names of local variables, parameters and fields that do not say what the value is."""

_VAGUE_WORDS = "anybody anyone everybody everyone nobody somebody someone whoever whom whomever"
VAGUE_WORDS = frozenset(_VAGUE_WORDS.split())
"""Words in place of the actor: the component, controller, cluster or user."""

_WORD = re.compile(r"[A-Za-z]+")
_CODE = re.compile(r"`[^`\n]+`")  # of a page: a name, which is checked where it is defined
Fault = tuple[str, str]  # file, word


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of local variables, parameters and fields, once for each binding."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    local = {node for function in functions for node in ast.walk(function)}  # a function may contain another
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ClassDef):
            targets = (statement.target for statement in node.body if isinstance(statement, ast.AnnAssign))
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node in local:
            yield node.id


def empty_names(tree: ast.AST) -> Iterator[str]:
    """Yield the empty names among them."""
    return (name for name in names(tree) if name in EMPTY_NAMES)


def share(trees: Iterable[ast.AST]) -> str:
    """Return the share of empty names, in percent."""
    total = Counter(name in EMPTY_NAMES for tree in trees for name in names(tree))
    return f"{100 * total[True] / max(1, total.total()):.2f} % of {total.total()} names"


def vague_words(text: str) -> Iterator[str]:
    """Yield the vague words of a text."""
    return (word for word in map(str.lower, _WORD.findall(text)) if word in VAGUE_WORDS)


def repeated_classes(trees: Mapping[str, ast.AST]) -> Iterator[Fault]:
    """Yield the public classes whose name several modules define, once for each further definition."""
    defined: dict[str, str] = {}
    for path, tree in trees.items():
        classes = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        for name in classes:
            if not name.startswith("_") and defined.setdefault(name, path) != path:
                yield path, f"class {name}"


def pages(root: Path) -> Iterator[Path]:
    """Yield the Markdown files that are written by hand."""
    for page in (root / name for name in PAGES):
        for path in sorted(page.rglob("*.md")) if page.is_dir() else [page]:
            if not path.relative_to(root).as_posix().startswith(GENERATED):
                yield path


def read_trees(root: Path) -> dict[str, ast.AST]:
    """Return the parsed modules by path."""
    paths = (path for source in SOURCES for path in sorted((root / source).rglob("*.py")))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(), str(path)) for path in paths}


def below(trees: Mapping[str, ast.AST], *sources: str) -> dict[str, ast.AST]:
    """Return the modules below some directories."""
    return {path: tree for path, tree in trees.items() if path.startswith(tuple(f"{name}/" for name in sources))}


def all_faults(trees: Mapping[str, ast.AST], root: Path = ROOT) -> Counter[Fault]:
    """Return the number of faults by file and word."""
    faults: Counter[Fault] = Counter()
    for name, tree in trees.items():
        words = () if name in WORD_LISTS else vague_words((root / name).read_text())
        faults.update((name, word) for word in (*empty_names(tree), *words))
    faults.update(repeated_classes(below(trees, *PRODUCT)))
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        faults.update((name, word) for word in vague_words(_CODE.sub("", page.read_text())))
    return faults


def read_allowed(text: str) -> Counter[Fault]:
    """Return the list of exceptions, from lines `FILE: WORD NUMBER`."""
    allowed: Counter[Fault] = Counter()
    for line in text.splitlines():
        path, _, entry = line.partition(": ")
        word, _, number = entry.rpartition(" ")
        allowed[path, word] = int(number)
    return allowed


def write_allowed(faults: Counter[Fault]) -> str:
    """Return the text of the list."""
    return "".join(f"{path}: {word} {number}\n" for (path, word), number in sorted(faults.items()))


def messages(faults: Counter[Fault], allowed: Counter[Fault]) -> list[str]:
    """Return the errors, a sentence each."""
    errors = [
        f'{path}: {faults[path, word]} times "{word}", allowed: {allowed[path, word]}; name the value or the actor'
        for path, word in sorted(faults)
        if faults[path, word] > allowed[path, word]
    ]
    if fewer := sum(faults[fault] < number for fault, number in allowed.items()):
        errors.append(f"{ALLOWED}: {fewer} numbers can be lowered: run `make language`")
    return errors


def main() -> int:
    """Compare the project with the list; with `--update` lower the list first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the numbers of the list")
    options = parser.parse_args()
    path = ROOT / ALLOWED
    trees = read_trees(ROOT)
    faults = all_faults(trees)
    allowed = read_allowed(path.read_text()) if path.exists() else faults
    if options.update:
        allowed &= faults
        path.write_text(write_allowed(allowed))
    errors = messages(faults, allowed)
    print("\n".join(errors) if errors else f"{allowed.total()} exceptions are left in {ALLOWED}")
    for title, sources in (("product", PRODUCT), ("devtools", ["devtools"]), ("tests", ["tests"])):
        print(f"{title}: {share(below(trees, *sources).values())} do not say what the value is")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
