"""The configuration of a cluster's agents, as its API server has it: the ConfigMap of chart and manifests."""

from __future__ import annotations

from mcagent.agent.config import Settings, load
from mcagent.cli.common.agents import SELECTOR
from mcagent.config.reader import ConfigText
from mcagent.kube.client import Client
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

ANY_NODE = {"MCAGENT_NODE_NAME": "any"}  # is not in what all Nodes share
_TIMEOUT = 10.0


def read_config_map(client: Client) -> tuple[Settings, str] | None:
    """Return the configuration and its ConfigMap's name; None: there is none. Raises SourceError, ConfigError."""
    path = object_path(Kind.CONFIG_MAP, "")
    listed = client.request("GET", path, {"labelSelector": SELECTOR, "limit": "10"}, timeout=_TIMEOUT)
    for config_map in (read_as(ConfigMap, item) for item in listed.get("items") or ()):
        if text := config_map.data.get("agent.yaml"):
            return load(ConfigText(text, config_map.subject), ANY_NODE, {}), config_map.subject
    return None
