"""The agent's configuration: read by `mcagent.config.reader` into one frozen value.

Owns what is wrong only together; the keys are in `mcagent.agent.config_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcagent.agent.config_keys import SCHEMA, Settings
from mcagent.config.reader import Reading, read
from mcagent.config.values import listen_problem
from mcagent.model.config import Config, DatapathChoice, TrafficEncryption
from mcagent.model.net import overlaps
from mcagent.model.resources import DEFAULT_PORTS, TunnelType


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """Read the configuration: defaults, then `file`, then MCAGENT_… variables, then flags (by key path).

    Raises ConfigError with every finding; each names where the value came from and its path.
    """
    reading = read(SCHEMA, file, environ, flags)
    reading.require("nodeName", "required: the name of this Node object (--node-name, MCAGENT_NODE_NAME)")
    if not reading.errors:
        _conflicts(reading)
    reading.check()
    core: dict[str, Any] = reading.fields(Config)
    own: dict[str, Any] = reading.fields(Settings)
    return Settings(core=Config(**core), **own)


def _conflicts(reading: Reading) -> None:
    """Values that are right alone and wrong together."""
    said = reading.said()
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
    found.extend(
        (path, wrong)
        for path in ("listen", "healthListen")
        if said[path] != "0" and (wrong := listen_problem(str(said[path])))
    )
    for path, reason in found:
        reading.conflict(path, reason)


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
