"""Reads a configuration: one YAML file, then environment, then flags.

Owns the precedence and the texts of errors; the keys are a `Schema`. An unknown key or an invalid value is an
error, and all errors are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import yaml

from mcagent.config.schema import Schema
from mcagent.model.errors import InputError, McagentError
from mcagent.model.keys.key import Key
from mcagent.model.keys.values import did_you_mean

# Variables that Kubernetes adds to containers for a Service whose name starts with "mcagent".
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.{0,253})?|PORT(_\d{1,5}_.{0,253})?)$")


class ConfigSource(Protocol):
    """A source of YAML text, such as a Path; messages contain its str()."""

    def read_text(self, encoding: str) -> str:
        """Read the text. Raises OSError."""


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A source that is a text instead of a file, as of a ConfigMap."""

    text: str
    name: str

    def read_text(self, encoding: str) -> str:  # noqa: ARG002
        """Return the text."""
        return self.text

    def __str__(self) -> str:
        return self.name


class ConfigError(McagentError):
    """The configuration is invalid. `errors` has one entry per error."""

    exit_code = 2

    def __init__(self, errors: Sequence[InputError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = tuple(errors)


@dataclass
class ParsedConfig:
    """Parsed configuration: value, source (`origin`) and errors per key path."""

    schema: Schema
    values: dict[str, object] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    errors: list[InputError] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # about accepted values

    def put(self, key: Key, raw: object, subject: str, path: str, *, text: bool) -> None:
        """Set a value; a later source overrides an earlier one."""
        try:
            parsed_value = key.value.parse_text(str(raw)) if text else key.value.parse(raw)
        except ValueError as error:
            reason = str(error)
            if match := re.match(r"(\[\d+\]): ", reason):  # an entry of a list
                path, reason = path + match[1], reason[match.end() :]
            self.errors.append(InputError(subject, path, reason))
        else:
            self.values[key.path] = parsed_value
            self.origin[key.path] = subject
            if remark := key.value.remark(raw):
                self.remarks.append(f"{subject}: {path or key.path}: {remark}")

    def require(self, path: str, reason: str) -> None:
        """Add an error if a key has no value."""
        if path not in self.values and not any(error.path == path for error in self.errors):
            self.errors.append(InputError("configuration", path, reason))

    def conflict(self, path: str, reason: str) -> None:
        """Add an error about values that are valid alone but contradict each other."""
        subject = self.origin.get(path.partition("[")[0], "configuration")
        self.errors.append(InputError(subject, path, reason))

    def check(self) -> None:
        """Raise ConfigError if there are errors."""
        if self.errors:
            raise ConfigError(self.errors)


def read(
    schema: Schema, file: ConfigSource | None, environ: Mapping[str, str], flags: Mapping[str, str]
) -> ParsedConfig:
    """Read `file`, then variables, then flags (by key path). Errors are collected in the result."""
    parsed = ParsedConfig(schema)
    if file is not None:
        _read_file(parsed, file)
    _read_environment(parsed, environ)
    by_path = {key.path: key for key in schema.keys}
    for path, text in flags.items():
        parsed.put(by_path[path], text, f"flag {by_path[path].flag}", "", text=True)
    return parsed


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys. All its errors are YAMLErrors with a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)  # type: ignore[no-untyped-call, unused-ignore]
        except (ValueError, KeyError, AttributeError):  # such as that of 2026-13-45, which has the form of a date
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f'"{node.value}" is no {kind}; put text into quotes', node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        names: set[object] = set()
        for key_node, _ in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else key_node
            if name in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f'key "{name}" is given twice', key_node.start_mark
                )
            names.add(name)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return, unused-ignore]


def load_yaml(text: str) -> object:
    """Return the value of a YAML text. Raises YAMLError, also for duplicate keys."""
    return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - derives from SafeLoader


def yaml_fault(error: yaml.YAMLError) -> str:
    """Return what is wrong with a text that is not YAML, and in which line, without the loader's name for it."""
    fault = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {fault}" if mark else str(fault)


def _read_file(parsed: ParsedConfig, file: ConfigSource) -> None:
    subject = f"configuration {file}"
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        parsed.errors.append(InputError(subject, "", f"cannot be read: {reason}"))
        return
    except yaml.YAMLError as error:
        parsed.errors.append(InputError(subject, "", f"is not YAML: {yaml_fault(error)}"))
        return
    if content is None:
        return
    if not isinstance(content, dict):
        parsed.errors.append(InputError(subject, "", "must be a mapping of keys to values"))
        return
    schema = parsed.schema
    nested = content.pop(schema.nested, None) if schema.nested else None
    for name, value in schema.constants.items():
        if content.pop(name, value) != value:
            parsed.errors.append(InputError(subject, name, f'must be "{value}"'))
    for name, why in schema.ignored.items():
        if content.pop(name, None) is not None:
            parsed.remarks.append(f"{subject}: {name}: {why}")
    _read_mapping(parsed, content, subject, "", "")
    if isinstance(nested, dict):
        _read_mapping(parsed, nested, subject, f"{schema.nested}.", "")
    elif nested is not None:
        parsed.errors.append(InputError(subject, schema.nested, "must be a mapping of keys to values"))


def _read_mapping(
    parsed: ParsedConfig, content: Mapping[object, object], subject: str, prefix: str, section: str
) -> None:
    """`prefix` is shown before a key's path ("multicluster."); `section` is a part of the path ("wireGuard.")."""
    schema = parsed.schema
    by_path = {key.path: key for key in schema.keys}
    sections = {path[:place] for path in by_path for place, letter in enumerate(path) if letter == "."}
    for name, raw in content.items():
        path, shown = f"{section}{name}", f"{prefix}{section}{name}"
        if raw is None:
            raw = {} if path in sections else raw  # noqa: PLW2901 - an empty section is an empty mapping
        if path in sections:
            if isinstance(raw, dict):
                _read_mapping(parsed, raw, subject, prefix, f"{path}.")
            else:
                parsed.errors.append(InputError(subject, shown, "must be a mapping of keys to values"))
        elif path not in by_path:
            reason = schema.elsewhere.get(path) or f"unknown key{did_you_mean(path, [*by_path, *sections])}"
            parsed.errors.append(InputError(subject, shown, reason))
        elif parsed.origin.get(path) == subject:
            parsed.errors.append(
                InputError(subject, shown, f"is given at top level and below {schema.nested}: keep one")
            )
        elif raw is not None:  # "key:" with nothing after it means the default
            parsed.put(by_path[path], raw, subject, shown, text=False)


def unknown_variables(schema: Schema, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the schema's prefix that are none of its keys, with what is wrong."""
    variables = [schema.variable(key) for key in schema.keys]
    return {
        name: f"unknown key{did_you_mean(name, variables)}"
        for name in sorted(environ)
        if name.startswith(schema.prefix) and not name.startswith(schema.other_prefixes)
        if name not in (*variables, schema.file_variable) and not _SERVICE_LINK.search(name)
    }


def _read_environment(parsed: ParsedConfig, environ: Mapping[str, str]) -> None:
    schema = parsed.schema
    by_env = {schema.variable(key): key for key in schema.keys}
    for name, text in sorted(environ.items()):
        if name in by_env:
            parsed.put(by_env[name], text, f"environment {name}", "", text=True)
    for name, reason in unknown_variables(schema, environ).items():
        parsed.errors.append(InputError(f"environment {name}", "", reason))
