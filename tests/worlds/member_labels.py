"""Pods, and label identities that the leader made, for tests of members."""

from __future__ import annotations

from typing import Any

from mcagent.controller.contract import names
from mcagent.kube.source import RawObject
from mcagent.model.parsing import labels
from tests.worlds.member_world import AREA

WEB = labels.normalised("shop", {}, {"app": "web"})


def pod(name: str, app: str = "web", namespace: str = "shop", **changes: Any) -> RawObject:
    """Return a Pod with one label."""
    meta = {"name": name, "namespace": namespace, "labels": {"app": app}}
    return {
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.1.0.1"},
    } | changes


def resource_import(text: str = WEB, number: object = 7, **meta: Any) -> RawObject:
    """Return a ResourceImport of an identity."""
    name = labels.label_hash(text)
    notes = {names.EXPORTERS_ANNOTATION: "east,west"}
    return {
        "kind": "ResourceImport",
        "metadata": {"name": name, "namespace": AREA, "annotations": notes} | meta,
        "spec": {"kind": "LabelIdentity", "labelIdentity": {"label": text, "id": number}},
    }
