"""What a key of a configuration is, and what the keys of a process have in common. Declares no key."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.config.values import Value


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: its path in YAML, the field it fills, the kind of its value, and its meaning for people."""

    path: str
    attribute: str
    value: Value
    meaning: str
    holder: type  # the dataclass that has the field, and so the default
    antrea: bool = False  # name and meaning are Antrea's

    @property
    def variable(self) -> str:
        """The environment variable, without the prefix: wireGuard.port is WIREGUARD_PORT."""
        return self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def flag(self) -> str:
        """The flag: enablePodToPodConnectivity is --enable-pod-to-pod-connectivity."""
        text = self.path.replace("wireGuard", "wireguard").replace(".", "-")
        text = re.sub(r"([a-z])(MTU|NAT|CIDR|ID|IP)", r"\1-\2", text)
        text = re.sub(r"(IP)([A-Z][a-z])", r"\1-\2", text)
        return "--" + re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", text).lower()

    @property
    def default(self) -> object:
        """The default, from the dataclass itself; None where there is none."""
        for entry in dataclasses.fields(self.holder):
            if entry.name == self.attribute:
                return None if entry.default is dataclasses.MISSING else entry.default
        raise AssertionError(f"no field {self.attribute}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All that can be configured of a process.

    Variables are `prefix` and a key's own; those in `others` and those with such a prefix are somebody else's.
    `elsewhere` says of keys that are not ours what to do about them. Keys may also stand below `nested`, if it is
    given. `constants` are keys that a file may have with just that value,
    `ignored` such that mean nothing here, and why.
    """

    keys: Sequence[Key]
    prefix: str
    file_variable: str  # names the file itself
    default_file: str  # read, if it is there, where nobody names one
    others: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    nested: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def variable(self, key: Key) -> str:
        """Return the environment variable of a key."""
        return self.prefix + key.variable
