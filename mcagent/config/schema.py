"""The configuration schema of a process: its keys, and how file and environment name them. Declares no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.model.keys.key import Key


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
class Schema:
    """The configuration schema of a process.

    A variable is `prefix` and the key's own name; variables with one of `other_prefixes` are ignored.
    `elsewhere` maps keys that are not supported to what the user should do. Keys may also be below `nested`, if it
    is set. `constants` are keys that a file may have with exactly that value; `ignored` maps ignored keys to the
    reason.
    """

    keys: Sequence[Key]
    prefix: str
    file_variable: str  # names the file itself
    default_file: str  # read, if it exists, when no file is named
    other_prefixes: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    nested: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def variable(self, key: Key) -> str:
        """Return the environment variable of a key."""
        return self.prefix + key.variable
