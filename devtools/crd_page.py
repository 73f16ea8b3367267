"""docs/reference/crds.md: `python -m devtools.crd_page FILE` writes it from the chart's CRDs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).parents[1] / "deploy" / "helm" / "mcagent" / "files" / "crds"
_HEAD = """\
# Custom resources

Every field of the CustomResourceDefinitions that `mcagent deploy` installs, made from them by `make docs`. Who
writes which of them, and which are for users: [members.md](../members.md#write-permissions). `[]` are the items of
a list, `{}` the values of a map; what has a * must be there.
"""
_BOUNDS = {
    "enum": "one of {}",
    "pattern": "`{}`",
    "format": "{}",
    "default": "default {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}
_EVERYWHERE = {"apiVersion", "kind", "metadata"}

Json = Mapping[str, Any]


def page() -> str:
    """Return the whole page."""
    crds = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(CRDS.glob("*.yaml"))]
    lines = [_HEAD]
    for crd in sorted(crds, key=lambda crd: crd["spec"]["names"]["kind"]):
        lines += _definition(crd["spec"])
    return "\n".join(lines).rstrip() + "\n"


def _definition(spec: Json) -> Iterator[str]:
    names = spec["names"]
    yield from (f"## {names['kind']}", "")
    short = f", short: {', '.join(f'`{name}`' for name in names['shortNames'])}" if names.get("shortNames") else ""
    yield from (f"`{names['plural']}.{spec['group']}`, {spec['scope'].lower()}{short}.", "")
    shown: list[tuple[list[str], list[str]]] = []  # versions that say the same are told together
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        table = [*_described(schema), *_table(schema)]
        kind = "stored" if version.get("storage") else "served" if version["served"] else "not served"
        same = next((row for row in shown if row[1] == table), None)
        if same is None:
            shown.append(([f"{version['name']} ({kind})"], table))
        else:
            same[0].append(f"{version['name']} ({kind})")
    for versions, table in shown:
        yield from (f"### {names['kind']} {', '.join(versions)}", "", *table)


def _described(schema: Json) -> Iterator[str]:
    if schema.get("description"):
        yield from (_text(schema["description"]), "")


def _table(schema: Json) -> Iterator[str]:
    yield from ("| field | type | |", "| --- | --- | --- |")
    required = schema.get("required") or ()
    for name, value in (schema.get("properties") or {}).items():
        if name not in _EVERYWHERE:
            yield from _rows(name, value, must=name in required)
    yield ""


def _rows(path: str, schema: Json, *, must: bool) -> Iterator[str]:
    """Yield a row for the field, and those inside it."""
    meaning = [_text(schema["description"])] if schema.get("description") else []
    meaning += [_text(_BOUNDS[key].format(_value(schema[key]))) for key in _BOUNDS if key in schema]
    meaning += [
        _text(rule.get("message") or rule["rule"]) for rule in schema.get("x-kubernetes-validations") or ()
    ]
    yield f"| `{path}`{' *' if must else ''} | {_type(schema)} | {'; '.join(meaning)} |"
    inner, items, values = schema.get("properties") or {}, schema.get("items"), schema.get("additionalProperties")
    required = schema.get("required") or ()
    for name, value in inner.items():
        yield from _rows(f"{path}.{name}", value, must=name in required)
    for mark, inner_schema in (("[]", items), ("{}", values)):
        if isinstance(inner_schema, dict) and (
            inner_schema.get("properties") or inner_schema.get("items") or inner_schema.get("description")
        ):
            needed = inner_schema.get("required") or ()
            for name, value in (inner_schema.get("properties") or {}).items():
                yield from _rows(f"{path}{mark}.{name}", value, must=name in needed)


def _type(schema: Json) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    type_name = str(schema.get("type", "any"))
    items, values = schema.get("items"), schema.get("additionalProperties")
    if type_name == "array" and isinstance(items, dict):
        return f"list of {_type(items)}"
    return f"map of {_type(values)}" if isinstance(values, dict) else type_name


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
