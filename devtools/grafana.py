"""Grafana's dashboards as values: panels, each a title, a kind, a unit and queries; the rest of the JSON follows.

Every one has a variable for the data source and one for the label `cluster`, which may be on no series at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
SCHEMA = 38  # of Grafana 10; newer ones read it
WIDTH, HEIGHT = 24, 8  # of the grid, and of a panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `queries`: PromQL and the legend. `unit`: Grafana's word. `red_at`: from this on, or below it."""

    title: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    about: str = ""
    red_at: float | None = None
    red_below: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard. `variables`: a name, and the query of its values."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str]] = field(default=())


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def as_json(dashboard: Dashboard) -> Json:
    """Return what Grafana imports."""
    panels, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(dashboard.panels, 1):
        height = 4 if panel.kind == "stat" else HEIGHT
        if x + panel.width > WIDTH:
            x, y, row = 0, y + row, 0
        panels.append(_panel(panel, number, {"h": height, "w": panel.width, "x": x, "y": y}))
        x, row = x + panel.width, max(row, height)
    clusters = ("cluster", "label_values(mcagent_build_info, cluster)")
    return {
        "uid": f"mcagent-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["mcagent"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["mcagent"], "title": "mcagent", "asDropdown": True}],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                *(_variable(name, query) for name, query in (clusters, *dashboard.variables)),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panel(panel: Panel, number: int, place: Json) -> Json:
    colours: list[Json] = [{"color": "green", "value": None}]
    if panel.red_at is not None:
        first, then = ("red", "green") if panel.red_below else ("green", "red")
        colours = [{"color": first, "value": None}, {"color": then, "value": panel.red_at}]
    elif panel.kind == "state-timeline":
        colours = [{"color": "red", "value": None}, {"color": "green", "value": 1}]
    instant = panel.kind == "stat"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": colours},
                **({} if panel.kind == "timeseries" else {"color": {"mode": "thresholds"}}),
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + place_),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": instant,
                "range": not instant,
            }
            for place_, (query, legend) in enumerate(panel.queries)
        ],
    }


def text(dashboard: Dashboard) -> str:
    """Return the file."""
    return json.dumps(as_json(dashboard), indent=1, ensure_ascii=False) + "\n"
