"""`python -m devtools.patterns`: no regular expression of the product has ambiguous repetition.

What that is: devtools/repetition.py. Checks every pattern in SOURCES, for own and foreign text, and those of
configuration keys. ALLOWED has the exceptions, by file and by variable or function, each with its reason; one that
is not needed is an error.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.repetition import fault
from mcagent.agent.config import KEYS as AGENT_KEYS
from mcagent.controller.config import KEYS as CONTROLLER_KEYS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("mcagent", "flows")
_COREFILE = "mcagent/controller/admin/corefile.py"
ALLOWED: Mapping[tuple[str, str], str] = {
    (_COREFILE, "_TOKEN"): "the administrator's own Corefile",
    (_COREFILE, "restored"): "the administrator's own Corefile",
    ("mcagent/doctor/scrub.py", "_TEXT"): "a search that has begun ends at the end of the text at the latest",
    ("mcagent/model/keys/values.py", "_seconds"): "the whole text has matched before",
    ("mcagent/model/parsing/document.py", "_TOKEN"): "matches at every quote, up to the end of the text",
}
_ANCHORED = frozenset({"match", "fullmatch"})
_FUNCTIONS = _ANCHORED | {"compile", "search", "sub", "subn", "split", "findall", "finditer"}


@dataclass(frozen=True, slots=True)
class Use:
    """A pattern of a variable, or in a function. `searching`: it is tried at each character."""

    name: str
    pattern: str | bytes
    flags: int
    searching: bool


def uses(tree: ast.Module, names: Mapping[str, Any]) -> Iterator[Use]:
    """Yield the patterns of a module; `names` are its global names. Local variables stand for a plain text."""
    methods: dict[str, set[str]] = {}  # that are called, by variable
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            methods.setdefault(node.value.id, set()).add(node.attr)
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        variables = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        methods_here = {method for variable in variables for method in methods.get(variable, ())} & _FUNCTIONS
        for call in ast.walk(statement):
            function = ast.unparse(call.func).removeprefix("re.") if isinstance(call, ast.Call) else ""
            if not isinstance(call, ast.Call) or function not in _FUNCTIONS or not _is_re(call):
                continue
            pattern = _value(call.args[0], names)
            functions = methods_here if function == "compile" else {function}
            if pattern is not None:
                yield Use(
                    name=", ".join(variables) or getattr(statement, "name", ""),
                    pattern=pattern,
                    flags=_flags(call),
                    searching=not functions or not functions <= _ANCHORED,
                )


def _is_re(call: ast.Call) -> bool:
    return ast.unparse(call.func).startswith("re.")


def _flags(call: ast.Call) -> int:
    words = map(ast.unparse, (*call.args[1:], *(keyword.value for keyword in call.keywords)))
    return sum(int(getattr(re, flag)) for word in words for flag in set(re.findall(r"\bre\.([A-Z]+)", word)))


def _value(node: ast.expr, names: Mapping[str, Any]) -> str | bytes | None:
    """Return the pattern that an expression gives, None if a local variable alone gives it."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
        return "".join(str(_value(part, names) or "x") for part in parts)
    try:
        value = eval(ast.unparse(node), dict(names))  # noqa: S307 - an expression of our own source
    except NameError:
        return None
    return value if isinstance(value, str | bytes) else None


def ambiguous(path: str, text: str, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the faults of a module's patterns, by variable or function."""
    return {
        use.name: f"{path}: {use.name}: {use.pattern!r}: {reason}"
        for use in uses(ast.parse(text), names)
        if (reason := fault(use.pattern, use.flags, searching=use.searching))
    }


def all_faults() -> Iterator[str]:
    """Yield the faults of the product, and exceptions without a fault."""
    allowed = set(ALLOWED)
    for file in sorted(file for source in SOURCES for file in (ROOT / source).rglob("*.py")):
        path, text = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        if "import re\n" not in text:
            continue
        module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for name, reason in ambiguous(path, text, vars(module)).items():
            if (path, name) not in ALLOWED:
                yield reason
            allowed.discard((path, name))
    for key in (*AGENT_KEYS, *CONTROLLER_KEYS):
        for pattern in _schema_patterns(key.value.schema):
            if reason := fault(pattern, 0, searching=False):
                yield f"{key.path}: {pattern!r}: {reason}"
    yield from (f"{path}: {name}: needs no exception" for path, name in sorted(allowed))


def _schema_patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from (value for name, value in schema.items() if name == "pattern" and isinstance(value, str))
        yield from (pattern for value in schema.values() for pattern in _schema_patterns(value))
    elif isinstance(schema, list):
        yield from (pattern for value in schema for pattern in _schema_patterns(value))


def main() -> int:
    """Print the faults; return the exit code."""
    reasons = list(all_faults())
    print("\n".join(reasons) or "no ambiguous repetition", file=sys.stderr if reasons else sys.stdout)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
