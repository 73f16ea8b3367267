"""The types of a configuration key and of the configuration schema of a process. Declares no key."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.config.values import Value


class LogLevel(StrEnum):
    """Lowest severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key: its path in YAML, the field it sets, the type of its value, and its documentation."""

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
        """The default of the field; None: there is none."""
        for entry in dataclasses.fields(self.holder):
            if entry.name == self.attribute:
                return None if entry.default is dataclasses.MISSING else entry.default
        raise AssertionError(f"no field {self.attribute}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The configuration schema of a process.

    A variable is `prefix` and the key's own name; variables that begin with one of `others` are ignored.
    `elsewhere` maps keys that are not supported to what the user should do. Keys may also be below `nested`, if it
    is set. `constants` are keys that a file may have with exactly that value; `ignored` maps ignored keys to the
    reason.
    """

    keys: Sequence[Key]
    prefix: str
    file_variable: str  # names the file itself
    default_file: str  # read, if it exists, when no file is named
    others: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    nested: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def variable(self, key: Key) -> str:
        """Return the environment variable of a key."""
        return self.prefix + key.variable
