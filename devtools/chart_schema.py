"""Writes values.schema.json of the Helm chart, and files/durations.json: python -m devtools.chart_schema FILE.

Owns what values of the chart may be. The keys of `config` are those of the processes themselves, so that a
misspelt key is refused by `helm install` already, and not by a Pod that does not start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mcagent.agent import config as agent
from mcagent.config.schema import Schema
from mcagent.controller import config as controller
from mcagent.model.keys import values

Json = dict[str, Any]
FLAG: Json = {"type": "boolean"}
TEXT: Json = {"type": "string"}
WORD: Json = {"type": "string", "pattern": r"^\S+$"}
LABEL: Json = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
SECRET: Json = {"type": "string", "pattern": r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"}
DIGEST: Json = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
CIDR: Json = {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}
ANYTHING: Json = {"type": "object"}
TEXTS: Json = {"type": "object", "additionalProperties": TEXT}
OBJECTS: Json = {"type": "array", "items": ANYTHING}
# Pods' labels, but for those by which workloads select them
LABELS: Json = TEXTS | {"propertyNames": {"not": {"pattern": r"^app\.kubernetes\.io/(name|component)$"}}}
SHARE: Json = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[1-9][0-9]?%$|^100%$"}]
}


def exactly(properties: Mapping[str, Json], required: Iterable[str] = ()) -> Json:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(properties),
        "required": sorted(required),
    }


def listed(items: Json) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def configuration(schema: Schema) -> Json:
    """Return the schema of a process's configuration: its keys, and the values that their types allow."""
    tree: Json = {}
    for path, value in [
        *((key.path, key.value.schema) for key in schema.keys),
        *((path, {"const": value}) for path, value in schema.constants.items()),
    ]:
        *above, last = path.split(".")
        section = tree
        for name in above:
            section = section.setdefault(name, exactly({}))["properties"]
        section[last] = dict(value)
    return exactly(tree)


POD: Mapping[str, Json] = {
    "podAnnotations": TEXTS,
    "podLabels": LABELS,
    "affinity": ANYTHING,
    "extraEnv": listed({"type": "object", "required": ["name"], "properties": {"name": WORD}}),
    "serviceAccount": exactly({"annotations": TEXTS}),
}


def controller_values(webhook: Mapping[str, Json] | None = None, **more: Json) -> Json:
    """Return the schema of a controller's values; `webhook` and `more` are what one role alone has."""
    fields = {
        "enabled": FLAG,
        "config": configuration(controller.SCHEMA),
        "replicas": {"type": "integer", "minimum": 1, "maximum": 9},
        "priorityClassName": TEXT,
        "nodeSelector": TEXTS,
        "tolerations": OBJECTS,
        "topologyKeys": listed(WORD),
        "resources": ANYTHING,
        **POD,
        "hostNetwork": FLAG,
        "podDisruptionBudget": exactly({"enabled": FLAG, "minAvailable": SHARE}),
        "networkPolicy": exactly({"enabled": FLAG, "webhookFrom": listed(CIDR), "egressTo": listed(CIDR)}),
        "webhook": exactly({"certSecret": SECRET, "annotations": TEXTS} | dict(webhook or {})),
    }
    return exactly(fields | more)


def document() -> Json:
    """Return the schema of all values."""
    agent_values = {
        "enabled": FLAG,
        "config": configuration(agent.SCHEMA),
        "maxUnavailable": SHARE,
        "updateStrategy": ANYTHING,
        "priorityClassName": TEXT,
        "nodeSelector": TEXTS,
        "tolerations": OBJECTS,
        "resources": ANYTHING,
        **POD,
        "addedCapabilities": listed({"type": "string", "pattern": "^[A-Z_]+$"}),
    }
    fields = {
        "image": exactly(
            {
                "registry": {"type": "string", "pattern": r"^(\S*[^\s/])?$"},
                "repository": WORD,
                "tag": TEXT,
                "digest": DIGEST,
                "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
            },
            ["repository"],
        ),
        "imagePullSecrets": listed(exactly({"name": LABEL}, ["name"])),
        "crds": exactly({"install": FLAG, "keep": FLAG}),
        "policies": exactly({"install": FLAG}),
        "agent": exactly(agent_values),
        "openvswitch": exactly(
            {
                "deploy": {"enum": ["auto", "always", "never"]},
                "directory": {"type": "string", "pattern": r"^/[\w./-]+$"},
                "image": exactly({"repository": WORD, "tag": TEXT, "digest": DIGEST}, ["repository"]),
                "resources": ANYTHING,
                "updateStrategy": ANYTHING,
                "podAnnotations": TEXTS,
                "podLabels": LABELS,
            }
        ),
        "member": controller_values(),
        "leader": controller_values(
            {"failurePolicy": {"enum": ["Fail", "Ignore"]}},
            namespace=LABEL,
            createNamespace=FLAG,
            allNamespaces=FLAG,
        ),
        "dns": exactly(
            {
                "rbac": FLAG,
                "configureCoreDNS": FLAG,
                "coreDNS": exactly(
                    {
                        **dict.fromkeys(("namespace", "serviceAccount", "configMap", "deployment"), LABEL),
                        "version": {"type": "string", "pattern": r"^(v?[0-9]+\.[0-9]+\.[0-9]+\S*)?$"},
                    }
                ),
            }
        ),
        "admissionPolicies": exactly(
            {
                "controllerServiceAccounts": dict(values.ACCOUNTS.schema),
                "agentServiceAccounts": dict(values.ACCOUNTS.schema),
                "agentsWithoutNode": FLAG,
                "enabled": {"const": True},  # of releases from before policies were always installed
            }
        ),
        "metricsReader": exactly({"enabled": FLAG, "subjects": OBJECTS}),
        "podMonitor": exactly(
            {
                "enabled": FLAG,
                "tokenSecret": SECRET,
                "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                "labels": TEXTS,
            }
        ),
        "prometheusRule": exactly({"enabled": FLAG, "labels": TEXTS}),
        "grafanaDashboards": exactly({"enabled": FLAG, "labels": TEXTS}),
        "global": ANYTHING,  # Helm's own
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "mcagent", **exactly(fields)}


def text() -> str:
    """Return the file's text."""
    return json.dumps(document(), indent=1) + "\n"


def durations_text() -> str:
    """Return the bounds of durations in seconds, by role and key, for a template: no pattern bounds "1m30s"."""
    bounds = {
        role: {
            key.path: [option["minimum"], option["maximum"], key.value.allowed]
            for key in schema.keys
            for option in key.value.schema.get("anyOf", ())
            if option.get("type") == "number"
        }
        for role, schema in (("agent", agent.SCHEMA), ("member", controller.SCHEMA), ("leader", controller.SCHEMA))
    }
    return json.dumps(bounds, indent=1) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(text(), encoding="utf-8")
    (target.parent / "files/durations.json").write_text(durations_text(), encoding="utf-8")
