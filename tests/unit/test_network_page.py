"""docs/network-requirements.md: its table has the ports that the program and the manifests have, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import yaml

from mcagent.controller.config import ControllerSettings
from mcagent.core.fragments.tunnel_guard import BFD_PORT
from mcagent.doctor.readings import probe
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import DEFAULT_PORTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/network-requirements.md").read_text(encoding="utf-8")


def default(kind: type[Config | ControllerSettings], name: str) -> int:
    """Return the default of a configuration's field."""
    (default_value,) = (field.default for field in fields(kind) if field.name == name)
    assert isinstance(default_value, int)
    return default_value


def container_ports(manifest: str) -> dict[str, int]:
    """Return the ports of Pods by name."""
    ports: dict[str, int] = {}
    for raw in yaml.load_all((ROOT / f"deploy/{manifest}.yaml").read_text(encoding="utf-8"), FastLoader):
        for container in (raw or {}).get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            ports |= {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    return ports


def test_the_table_has_the_ports_that_there_are() -> None:
    """Tunnels, WireGuard, the doctor's probe, and every port of the shipped Pods."""
    table = PAGE.split("## Ports")[1].split("Nothing else is needed")[0]
    told = {(protocol, int(port)) for protocol, port in re.findall(r"(UDP|TCP) (\d+)", table)}
    expected = {
        ("UDP", port) for port in (*DEFAULT_PORTS.values(), default(Config, "wireguard_port"), probe._PORT)
    }
    pods = [container_ports(manifest) for manifest in ("agent", "member", "leader")]
    expected |= {("TCP", port) for ports in pods for port in ports.values()}
    assert told == expected
    assert container_ports("member")["webhook"] == default(ControllerSettings, "webhook_port")
    assert f"UDP {BFD_PORT}, the usual one, stays closed" in PAGE
