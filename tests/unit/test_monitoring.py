"""Rules and dashboards name only what the program serves. Prometheus itself judges them in tests/embedded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from devtools.dashboards import DASHBOARDS
from devtools.grafana import Dashboard, text
from mcagent.kube.sources.manifests import FastLoader
from tests.worlds.alert_rules import FILES, LABELS, RULES

OF_PROMETHEUS = {"cluster", "instance", "job", "namespace", "le", "alertname", "alertstate"}


def expressions(dashboard: Dashboard) -> list[str]:
    """Return the queries of all panels."""
    return [query for panel in dashboard.panels for query, _ in panel.queries]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
def test_dashboards_are_current(dashboard: Dashboard) -> None:
    """`make docs` writes them; panels do not overlap and stay within the grid."""
    assert (FILES / "dashboards" / f"mcagent-{dashboard.name}.json").read_text(encoding="utf-8") == text(dashboard)
    cells = [
        (place["x"] + column, place["y"] + row)
        for panel in yaml.load(text(dashboard), FastLoader)["panels"]
        for place in [panel["gridPos"]]
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize(
    "expression", sorted({*(rule["expr"] for rule in RULES), *(q for d in DASHBOARDS for q in expressions(d))})
)
def test_every_series_and_label_that_is_named_exists(expression: str) -> None:
    """A metric or label that is renamed in the program is found here, not by an alert that never fires."""
    names = {name.removesuffix("_bucket") for name in re.findall(r"\bmcagent_\w+", expression)}
    assert names <= set(LABELS), f"no such metric: {names - set(LABELS)}"
    labels = {label for name in names for label in LABELS[name]} | OF_PROMETHEUS
    named = set(re.findall(r'(\w+)(?:=~|!=|!~|=)"', expression))
    for grouped in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expression):
        named |= set(grouped.split(", "))
    assert named <= labels | {"hash"}, f"no such label: {named - labels}"


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    """Each has a severity and two sentences, and names labels only that its expression leaves."""
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        labels_used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        outer = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        labels_left = set(outer[1].split(", ")) if outer else OF_PROMETHEUS
        assert labels_used <= labels_left, (
            f"{rule['alert']} names {labels_used - labels_left}, which its expression drops"
        )


def test_every_alert_has_an_entry_in_the_documentation() -> None:
    """With its severity, its meaning and what to do; and none is described that does not exist."""
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if "| `Mc" in line
    ]
    assert all(len(row) == 4 and all(row) for row in rows)
    described = {row[0].strip("`"): row[1] for row in rows}
    assert len(described) == len(rows)
    assert described == {rule["alert"]: rule["labels"]["severity"] for rule in RULES if "alert" in rule}


def test_every_alert_has_a_test_that_it_fires() -> None:
    """tests/prometheus/rules_test.yaml names each of them; `promtool test rules` runs it in tests/embedded."""
    tested = (Path(__file__).parents[1] / "prometheus" / "rules_test.yaml").read_text(encoding="utf-8")
    fires = tested.partition("eval_time: 30m")[2]
    assert {rule["alert"] for rule in RULES if "alert" in rule} == set(re.findall(r'alertname="(\w+)"', fires))
