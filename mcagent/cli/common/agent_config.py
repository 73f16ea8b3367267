"""The configuration of a cluster's agents, as its API server has it: the ConfigMap of chart and manifests."""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.agent.config import Settings, load
from mcagent.cli.common.agents import SELECTOR
from mcagent.controller.contract.raw import items_at, text_at
from mcagent.kube.client import Client
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

ANY_NODE = {"MCAGENT_NODE_NAME": "any"}  # is not in what all Nodes share
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class _Text:
    """A configuration that is no file."""

    text: str
    name: str

    def read_text(self, encoding: str | None = None) -> str:  # noqa: ARG002
        """Return it."""
        return self.text

    def __str__(self) -> str:
        return self.name


def read_config_map(client: Client) -> tuple[Settings, str] | None:
    """Return the configuration and the name of its ConfigMap; None if there is none.

    Raises SourceError, ConfigError.
    """
    path = object_path(Kind.CONFIG_MAP, "")
    found = client.request("GET", path, {"labelSelector": SELECTOR, "limit": "10"}, timeout=_TIMEOUT)
    for one in items_at(found, "items"):
        if text := text_at(one, "data", "agent.yaml"):
            name = f"ConfigMap {text_at(one, 'metadata', 'namespace')}/{text_at(one, 'metadata', 'name')}"
            return load(_Text(text, name), ANY_NODE, {}), name
    return None
