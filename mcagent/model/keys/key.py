"""A configuration key, declared at the field that it sets: `Annotated[type, Key(path, kind, meaning)]`.

Owns what follows from a declaration: names in the environment and of flags, and making the dataclass of values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, get_type_hints

from mcagent.model.keys.values import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its path in YAML, the type of its value, and its documentation.

    `keys_of` sets the members that follow from the field: `attribute` is its path from the outermost dataclass.
    """

    path: str
    value: Value
    meaning: str
    _: dataclasses.KW_ONLY
    antrea: bool = False  # name and meaning are Antrea's
    reloadable: bool = False  # a change applies without a restart
    attribute: str = ""
    default: object = None
    required: bool = False

    @property
    def variable(self) -> str:
        """The environment variable, without the prefix: wireGuard.port is WIREGUARD_PORT."""
        return self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def flag(self) -> str:
        """The flag: enablePodToPodConnectivity is --enable-pod-to-pod-connectivity."""
        text = self.path.replace("wireGuard", "wireguard").replace(".", "-")
        text = re.sub(r"([a-z])(MTU|NAT|CIDR|ID|IP|CA)", r"\1-\2", text)
        text = re.sub(r"(IP)([A-Z][a-z])", r"\1-\2", text)
        return "--" + re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", text).lower()

    def value_in(self, settings: object) -> Any:
        """Return the value of this key in the dataclass whose keys `keys_of` returned."""
        return attrgetter(self.attribute)(settings)


def keys_of(settings: type) -> tuple[Key, ...]:
    """Return the keys that the fields of a dataclass, and of the dataclasses in its fields, declare.

    A key that several of them inherit is returned once.
    """
    keys: dict[str, Key] = {}
    for key in _declared(settings, ""):
        keys.setdefault(key.path, key)
    return tuple(keys.values())


def make_settings(settings: type[T], values: Mapping[str, object], **other_fields: object) -> T:
    """Return the dataclass with the values of keys, by path, and of `other_fields`, fields that are no keys."""
    arguments: dict[str, Any] = dict(other_fields)
    for name, declaration in _declarations(settings):
        if isinstance(declaration, type):
            arguments[name] = make_settings(declaration, values)
        elif declaration.path in values:
            arguments[name] = values[declaration.path]
    return settings(**arguments)


def _declared(settings: type, prefix: str) -> Iterator[Key]:
    for name, declaration in _declarations(settings):
        if isinstance(declaration, type):
            yield from _declared(declaration, f"{prefix}{name}.")
        else:
            yield replace(declaration, attribute=prefix + name)


def _declarations(settings: type) -> Iterator[tuple[str, Key | type]]:
    """Yield each field that is a key, or a dataclass with keys."""
    hints: dict[str, Any] = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield field.name, hint
        for key in getattr(hint, "__metadata__", ()):
            required = field.default is dataclasses.MISSING
            yield field.name, replace(key, default=None if required else field.default, required=required)
