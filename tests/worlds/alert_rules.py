"""The alerts of deploy/."""

from __future__ import annotations

from pathlib import Path

import yaml

from mcagent.kube.sources.manifests import FastLoader
from tests.worlds.metrics_page import agent_rows, controller_rows

FILES = Path(__file__).parents[2] / "deploy/helm/mcagent/files/monitoring"

RULES = [
    rule
    for group in yaml.load((FILES / "rules.yaml").read_text(), FastLoader)["groups"]
    for rule in group["rules"]
]

LABELS = {one.name: set(one.labels) for one in (*agent_rows(), *controller_rows())}
