"""The agent's configuration: one YAML file, then environment, then flags, read into one frozen value.

Owns the precedence and what is wrong only together; the keys are in `mcagent.agent.config_keys`. Nothing is
guessed: an unknown key, a value that is wrong or one that this version cannot honour is refused, and all errors
are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mcagent.agent.config_keys import ENV_PREFIX, KEYS, Key, Settings
from mcagent.agent.config_values import did_you_mean
from mcagent.model.config import Config, DatapathChoice, TrafficEncryption
from mcagent.model.errors import InputError, McagentError
from mcagent.model.net import overlaps
from mcagent.model.resources import DEFAULT_PORTS, TunnelType

ENV_CONFIG = "MCAGENT_CONFIG"  # the path of the file itself
ENV_OTHERS = ("MCAGENT_LAB_", "MCAGENT_TEST_")  # the lab's and the tests' own; they may be set around an agent
# What Kubernetes puts into a container's environment for a Service whose name starts with "mcagent".
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_.*)?)$")


class ConfigError(McagentError):
    """The configuration is refused. `errors` has one entry per finding."""

    exit_code = 2

    def __init__(self, errors: Sequence[InputError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = tuple(errors)


_BY_PATH = {key.path: key for key in KEYS}
_SECTIONS = {path[:place] for path in _BY_PATH for place, letter in enumerate(path) if letter == "."}
_ELSEWHERE = {
    "enable": 'was renamed in Antrea 2.0: use "enableGateway"',
    "featureGates": "is not used: leave it out",
    "serviceCIDR": "belongs to the controller's configuration: gateways tell it in their Gateway objects",
    "gatewayIPPrecedence": "belongs to the controller's configuration",
    "endpointIPType": "belongs to the controller's configuration",
}


@dataclass
class _Reader:
    """Collects values and errors; a later source overwrites what an earlier one said."""

    values: dict[str, object] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    errors: list[InputError] = field(default_factory=list)

    def put(self, key: Key, raw: object, subject: str, path: str, *, text: bool) -> None:
        try:
            parsed = key.value.parse_text(str(raw)) if text else key.value.parse(raw)
        except ValueError as error:
            reason = str(error)
            if match := re.match(r"(\[\d+\]): ", reason):  # an entry of a list
                path, reason = path + match[1], reason[match.end() :]
            self.errors.append(InputError(subject, path, reason))
        else:
            self.values[key.path] = parsed
            self.origin[key.path] = subject


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """Read the configuration: defaults, then `file`, then MCAGENT_… variables, then flags (by key path).

    Raises ConfigError with every finding; each names where the value came from and its path.
    """
    reader = _Reader()
    if file is not None:
        _read_file(reader, file)
    _read_environment(reader, environ)
    for path, text in flags.items():
        reader.put(_BY_PATH[path], text, f"flag {_BY_PATH[path].flag}", "", text=True)
    if "nodeName" not in reader.values and not any(error.path == "nodeName" for error in reader.errors):
        reader.errors.append(
            InputError(
                "configuration",
                "nodeName",
                "required: the name of this Node object (--node-name, MCAGENT_NODE_NAME)",
            )
        )
    if not reader.errors:
        reader.errors.extend(_conflicts(reader))
    if reader.errors:
        raise ConfigError(reader.errors)
    core: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for path, value in reader.values.items():
        (core if _BY_PATH[path].core else own)[_BY_PATH[path].attribute] = value
    return Settings(core=Config(**core), **own)


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice instead of taking the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            name = key_node.value
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'key "{name}" is given twice', key_node.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return, unused-ignore]


def _read_file(reader: _Reader, file: Path) -> None:
    subject = f"configuration {file}"
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 - derives from SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reader.errors.append(InputError(subject, "", f"cannot be read: {error}"))
        return
    except yaml.YAMLError as error:
        reader.errors.append(InputError(subject, "", f"is not YAML: {' '.join(str(error).split())}"))
        return
    if content is None:
        return
    if not isinstance(content, dict):
        reader.errors.append(InputError(subject, "", "must be a mapping of keys to values"))
        return
    nested = content.pop("multicluster", None)
    _read_mapping(reader, content, subject, "", "")
    if isinstance(nested, dict):
        _read_mapping(reader, nested, subject, "multicluster.", "")
    elif nested is not None:
        reader.errors.append(InputError(subject, "multicluster", "must be a mapping of keys to values"))


def _read_mapping(
    reader: _Reader, content: Mapping[object, object], subject: str, prefix: str, section: str
) -> None:
    """`prefix` is how the place is told ("multicluster."), `section` what is looked up ("wireGuard.")."""
    for name, raw in content.items():
        path, told = f"{section}{name}", f"{prefix}{section}{name}"
        if raw is None:
            raw = {} if path in _SECTIONS else raw  # noqa: PLW2901 - an empty section is an empty mapping
        if path in _SECTIONS:
            if isinstance(raw, dict):
                _read_mapping(reader, raw, subject, prefix, f"{path}.")
            else:
                reader.errors.append(InputError(subject, told, "must be a mapping of keys to values"))
        elif path not in _BY_PATH:
            reason = _ELSEWHERE.get(path) or f"unknown key{did_you_mean(path, [*_BY_PATH, *_SECTIONS])}"
            reader.errors.append(InputError(subject, told, reason))
        elif reader.origin.get(path) == subject:
            reader.errors.append(
                InputError(subject, told, "is given at top level and below multicluster: keep one")
            )
        elif raw is not None:  # "key:" with nothing after it means the default
            reader.put(_BY_PATH[path], raw, subject, told, text=False)


def _read_environment(reader: _Reader, environ: Mapping[str, str]) -> None:
    by_env = {key.env: key for key in KEYS}
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name == ENV_CONFIG or name.startswith(ENV_OTHERS):
            continue
        if name in by_env:
            reader.put(by_env[name], text, f"environment {name}", "", text=True)
        elif not _SERVICE_LINK.search(name):
            reader.errors.append(
                InputError(f"environment {name}", "", f"unknown key{did_you_mean(name, list(by_env))}")
            )


def _conflicts(reader: _Reader) -> list[InputError]:
    """Values that are right alone and wrong together."""
    said = {key.path: reader.values.get(key.path, key.default) for key in KEYS}
    found: list[tuple[str, str]] = []
    cidrs = said["podCIDRs"]
    assert isinstance(cidrs, tuple)
    for index, cidr in enumerate(cidrs):
        found.extend(
            (f"podCIDRs[{index}]", f"{cidr} overlaps {other} (podCIDRs[{before}])")
            for before, other in enumerate(cidrs[:index])
            if overlaps(cidr, other)
        )
    found.extend(
        (second, f"must differ from {first}: both are {said[first]}")
        for first, second in (
            ("routeTable", "replyTable"),
            ("bridge", "hostPort"),
            ("bridge", "wireGuard.deviceName"),
            ("hostPort", "wireGuard.deviceName"),
        )
        if said[first] == said[second]
    )
    if said["trafficEncryptionMode"] is not TrafficEncryption.NONE:
        found.extend(_encryption_conflicts(said))
    found.extend(
        (name, f'"{said[name]}" begins like the tunnel ports of ours (mcn-, mcg-, mcr-): choose another')
        for name in ("bridge", "hostPort", "wireGuard.deviceName")
        if str(said[name]).startswith(("mcn-", "mcg-", "mcr-"))
    )
    if not said["nodeName"]:
        found.append(("nodeName", "must not be empty: the name of this Node object"))
    host, _, port = str(said["listen"]).rpartition(":")
    if int(port) > 65535 or any(int(part) > 255 for part in host.split(".") if part.isdigit()):
        found.append(("listen", f'must be address:port, not "{said["listen"]}"'))
    return [
        InputError(reader.origin.get(path.split("[")[0], "configuration"), path, reason) for path, reason in found
    ]


def _encryption_conflicts(said: Mapping[str, object]) -> list[tuple[str, str]]:
    """What excludes encryption, or makes no sense with it."""
    found = []
    port = said["tunnelPort"] or DEFAULT_PORTS[TunnelType(str(said["tunnelType"]))]
    if port == said["wireGuard.port"]:
        found.append(("wireGuard.port", f"must differ from the tunnels' port: both are {port}"))
    if said["datapath"] is DatapathChoice.NETDEV:
        reason = (
            "the userspace datapath (netdev) sends its tunnels past WireGuard: only the kernel's can be encrypted"
        )
        found.append(("datapath", reason))
    return found
