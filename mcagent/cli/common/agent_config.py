"""The configuration of a cluster's agents, as its API server has it: the ConfigMap of chart and manifests."""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.agent.config import Settings, load
from mcagent.cli.common.agents import SELECTOR
from mcagent.kube.client import Client
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

ANY_NODE = {"MCAGENT_NODE_NAME": "any"}  # is not in what all Nodes share
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A configuration in a ConfigMap instead of a file (`mcagent.config.reader.ConfigSource`)."""

    text: str
    name: str

    def read_text(self, encoding: str | None = None) -> str:  # noqa: ARG002
        """Return the text."""
        return self.text

    def __str__(self) -> str:
        return self.name


def read_config_map(client: Client) -> tuple[Settings, str] | None:
    """Return the configuration and the name of its ConfigMap; None if there is none.

    Raises SourceError, ConfigError.
    """
    path = object_path(Kind.CONFIG_MAP, "")
    listed = client.request("GET", path, {"labelSelector": SELECTOR, "limit": "10"}, timeout=_TIMEOUT)
    for config_map in (read_as(ConfigMap, item) for item in listed.get("items") or ()):
        if text := config_map.data.get("agent.yaml"):
            return load(ConfigText(text, config_map.subject), ANY_NODE, {}), config_map.subject
    return None
