"""The reference page of metrics, and how many time series there are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mcagent.controller.config import ControllerRole
from mcagent.model.objects import Kind
from mcagent.observe.metrics.policies import MOST_RULES
from tests.worlds.core_inputs import HOME
from tests.worlds.metrics_page import LABELS, agent_rows, controller_rows, filled
from tests.worlds.metrics_world import Size, agent_metrics, controller_metrics, series

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_is_current() -> None:
    """`make docs` writes docs/reference/metrics.md; nobody forgets to."""
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text


def test_every_label_is_explained_and_every_name_is_plain() -> None:
    """No label is unexplained, or explained and nowhere; counters, and only they, end in _total."""
    rows = [*agent_rows(), *controller_rows()]
    assert {label for row in rows for label in row.labels} == set(LABELS)
    for row in rows:
        assert row.name.startswith("mcagent_")
        assert row.name.endswith("_total") == (row.type == "counter"), row.name
        assert row.meaning.endswith("."), row.name


@pytest.mark.parametrize(
    "size",
    [
        Size(clusters=0, services=0, rules=0),
        Size(clusters=250, gateways=2, nodes=300, services=300, rules=3 * MOST_RULES),
        Size(clusters=30, gateways=16, nodes=5, services=1000),
    ],
    ids=["alone", "250 clusters", "many gateways"],
)
def test_time_series_stay_within_the_bounds_that_the_page_tells(size: Size) -> None:
    """Each family, and so all together, with what a gateway of so many clusters really serves."""
    gateways = size.clusters * size.gateways
    tunnels = gateways + size.nodes + len([obj for obj in HOME if obj.meta.kind is Kind.NODE]) - 1
    numbers = {"T": tunnels, "G": gateways, "E": size.services, "K": len(Kind)}
    bounds = {row.name.removesuffix("_total"): row.bound.of(numbers, row.factor) for row in agent_rows()}
    counts = series(agent_metrics(size).registry)
    assert counts["mcagent_tunnel_up"] == tunnels, "the world is not the one that was asked for"
    assert {name: (count, bounds[name]) for name, count in counts.items() if count > bounds[name]} == {}


def test_controllers_have_no_time_series_of_objects() -> None:
    """What is there before anything is read: reconcilers and kinds, whose number the program fixes."""
    with tempfile.TemporaryDirectory() as directory:
        for role in ("leader", "member"):
            counts = series(controller_metrics(ControllerRole(role), Path(directory)))
            bounds = {
                row.name.removesuffix("_total"): row.bound.of({"C": 20, "K": 2 * len(Kind)}, row.factor)
                for row in controller_rows()
            }
            assert counts["mcagent_controller_queue_depth"] <= 20
            assert {name: count for name, count in counts.items() if count > bounds[name]} == {}
