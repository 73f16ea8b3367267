"""Finds the functions that take a text apart, and those that run while something is read.

By the source: a function has a parameter that is a text, and calls one of OPERATIONS with it. Knows no reader.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
# What reads objects, requests and answers of others. Elsewhere text is of this Node's own programs, or of its
# administrator: output of Open vSwitch and nft, configuration, commands.
PACKAGES = ("agent", "controller", "core", "http", "kube", "model")
OWN = ("controller/admin/", "controller/config.py", "model/keys/")
TEXTS = frozenset({"str", "bytes", "str | None", "bytes | None", "bytes | str", "object", "Any"})
# fmt: off
OPERATIONS = frozenset({
    "b64decode", "decode", "find", "findall", "finditer", "fullmatch", "host_network", "index",
    "ip_address", "ip_network", "join", "loads", "lstrip", "match", "parse_address", "parse_network",
    "partition", "read_as", "removeprefix", "replace", "rpartition", "rsplit", "rstrip", "search", "split",
    "splitlines", "strip", "sub", "translate",
})
# fmt: on


def reading_functions() -> Iterator[str]:
    """Yield the functions that take a text apart, as "controller/contract/names.py:is_label"."""
    for package in PACKAGES:
        for file in sorted((ROOT / "mcagent" / package).rglob("*.py")):
            path = file.relative_to(ROOT / "mcagent").as_posix()
            if not path.startswith(OWN):
                yield from (
                    f"{path}:{name}" for name in _functions(ast.parse(file.read_text(encoding="utf-8")), "")
                )


def _functions(tree: ast.AST, inside: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        name = f"{inside}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            texts = {
                argument.arg
                for argument in arguments
                if argument.annotation and ast.unparse(argument.annotation) in TEXTS
            }
            if texts and any(_takes_apart(call, texts) for call in ast.walk(node)):
                yield name
            yield from _functions(node, f"{name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.")


def _takes_apart(call: ast.AST, texts: set[str]) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute | ast.Name):
        return False
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    values = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) and method else [])]
    return name in OPERATIONS and any(
        isinstance(part, ast.Name) and part.id in texts for value in values for part in ast.walk(value)
    )


def entered(run: Callable[[], object]) -> set[str]:
    """Return the functions of PACKAGES that run, in the same form."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "/mcagent/" in frame.f_code.co_filename:
            path = frame.f_code.co_filename.rpartition("/mcagent/")[2]
            names.add(f"{path}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names
