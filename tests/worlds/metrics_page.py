"""docs/reference/metrics.md: `python -m tests.worlds.metrics_page FILE` makes its tables from the metrics.

Name, type, labels and meaning are those of the collectors. What only people know is here: what a label says, and
how many time series a set of labels can have at most; `tests/unit/test_metrics_page.py` holds both to it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric

from mcagent.controller.config import ControllerRole
from tests.worlds.metrics_world import Size, agent_metrics, controller_metrics

SYMBOLS = {
    "T": "tunnels of the Node. A worker: the gateways of its cluster. A gateway: the other Nodes of its cluster, "
    "and the gateways of all other clusters",
    "G": "gateways of all other clusters, on a gateway; a worker has none",
    "E": "exported Services of this cluster, on a gateway; a worker has none",
    "K": "kinds of objects that the process reads",
    "C": "reconcilers of the controller, at most 20",
}
LABELS = {
    "answer": "what an admission review said",
    "backend": "backend of the Node: ovsdb, openflow, netlink, nft, wireguard",
    "cause": "who decided: BFD, Node, API, drain",
    "code": "HTTP status, or `ok`, `unreachable`, `garbage`",
    "device": "WireGuard device of this Node, such as mc-wg0",
    "direction": "of a policy's rule: ingress, egress",
    "export": "exported Service, NAMESPACE/NAME",
    "implementation": "kernel, userspace (wireguard-go), none",
    "kind": "kind of a resource of the dataplane; in the controller's, kind of an object of the API",
    "mode": "`trafficEncryptionMode`",
    "op": "add, replace, delete",
    "peer": "Node of this cluster, or ID of another one",
    "peer_kind": "node, gateway (of this cluster), remote (gateway of another)",
    "phase": "of a pass, or of handing over",
    "policy": "KIND/NAME of a policy",
    "reason": "word of a fixed set, never the text of an error",
    "reconciler": "part of the controller",
    "resource": "kind of an object of the API",
    "result": "word of a fixed set",
    "rule": "its name",
    "severity": "error, warning",
    "state": "of a member of the ClusterSet: ready, away",
    "side": "local, leader: whose API server",
    "thread": "name of a thread",
    "tunnel": "name of its port in Open vSwitch",
    "verb": "what was asked of the API server",
    "verdict": "what a rule does",
    "version": "of mcagent",
}
_UNITS = {"timestamp_seconds": "s since 1970", "seconds": "s", "bytes": "bytes", "ratio": "0 to 1"}


@dataclass(frozen=True, slots=True)
class Bound:
    """How many combinations of labels there are at most: `count`, for each of what `symbol` stands for if any."""

    count: int = 1
    symbol: str = ""

    def of(self, numbers: Mapping[str, int], factor: int = 1) -> int:
        """Return it as a number."""
        return self.count * factor * (numbers[self.symbol] if self.symbol else 1)

    def text(self, factor: int) -> str:
        """Return it as it is shown."""
        count = self.count * factor
        return f"{count} {self.symbol}" if self.symbol and count > 1 else self.symbol or str(count)


_PER_LABELS = {
    ("answer", "kind"): Bound(40),
    ("backend",): Bound(5),
    ("backend", "kind"): Bound(20),
    ("backend", "reason"): Bound(10),
    ("cause", "peer_kind"): Bound(12),
    ("code", "side", "verb"): Bound(200),
    ("direction", "policy", "rule", "verdict"): Bound(510),
    ("device",): Bound(4),
    ("export",): Bound(1, "E"),
    ("implementation", "mode"): Bound(3),
    ("kind",): Bound(20),
    ("kind", "op"): Bound(60),
    ("kind", "reason", "side"): Bound(8, "K"),
    ("kind", "reconciler", "side", "verb"): Bound(20, "C"),
    ("kind", "side"): Bound(1, "K"),
    ("peer", "peer_kind", "tunnel"): Bound(1, "T"),
    ("peer", "tunnel"): Bound(1, "G"),
    ("peer_kind",): Bound(3),
    ("phase",): Bound(12),
    ("reason",): Bound(20),
    ("reason", "resource"): Bound(8, "K"),
    ("reason", "severity"): Bound(100),
    ("reconciler",): Bound(1, "C"),
    ("reconciler", "result"): Bound(7, "C"),
    ("resource",): Bound(1, "K"),
    ("result",): Bound(4),
    ("state",): Bound(2),
    ("thread",): Bound(20),
    ("version",): Bound(),
    (): Bound(),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A family of metrics as the page shows it. `factor`: time series for each combination of labels."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str
    factor: int = 1

    @property
    def bound(self) -> Bound:
        """How many combinations of its labels there are at most. KeyError for labels that nobody has counted."""
        return _PER_LABELS[self.labels]

    @property
    def unit(self) -> str:
        """The unit, which follows from the name."""
        plain = self.name.removesuffix("_total")
        return next((unit for end, unit in _UNITS.items() if plain.endswith(f"_{end}")), "")


def row(family: Metric) -> Row:
    """Return what a family of metrics says of itself."""
    names = getattr(family, "_labelnames", None)  # of families that collectors make, also empty ones
    labels = {label for sample in family.samples for label in sample.labels} if names is None else set(names)
    kinds = {(sample.name, sample.labels.get("le")) for sample in family.samples}
    name = f"{family.name}_total" if family.type == "counter" else family.name
    factor = len(kinds) if family.type == "histogram" and kinds else 1
    factor = 17 if family.type == "histogram" and not kinds else factor
    return Row(name, family.type, tuple(sorted(labels - {"le"})), family.documentation, factor)


def agent_rows() -> Sequence[Row]:
    """Return the metrics of the agent."""
    return sorted(map(row, agent_metrics(Size()).registry.collect()), key=lambda metric_row: metric_row.name)


def controller_rows() -> Sequence[Row]:
    """Return the metrics of the controllers, of leader and member."""
    with tempfile.TemporaryDirectory() as directory:
        families = [
            family for role in ControllerRole for family in controller_metrics(role, Path(directory)).collect()
        ]
    return sorted(
        {metric_row.name: metric_row for metric_row in map(row, families)}.values(), key=lambda one: one.name
    )


def table(rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = ["| metric | type | unit | labels | time series | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{row.name}` | {row.type} | {row.unit} | {', '.join(row.labels)} | {row.bound.text(row.factor)} "
        f"| {row.meaning} |"
        for row in rows
    ]
    return "\n".join(lines)


def total(rows: Sequence[Row]) -> str:
    """Return how many time series a process has at most, by what they grow with."""
    sums: dict[str, int] = {}
    for row in rows:
        sums[row.bound.symbol] = sums.get(row.bound.symbol, 0) + row.bound.count * row.factor
    fixed = sums.pop("", 0)
    return " + ".join([str(fixed), *(f"{sums[symbol]} {symbol}" for symbol in SYMBOLS if symbol in sums)])


def parts() -> dict[str, str]:
    """Return the parts of the page that are made."""
    agent, controller = agent_rows(), controller_rows()
    words = [f"| `{label}` | {text} |" for label, text in sorted(LABELS.items())]
    symbols = [f"| {symbol} | {text} |" for symbol, text in SYMBOLS.items()]
    return {
        "agent": table(agent),
        "controller": table(controller),
        "labels": "\n".join(["| label | meaning |", "| --- | --- |", *words]),
        "cardinality": "\n".join(
            [
                f"At most: an agent **{total(agent)}**, a controller **{total(controller)}**.",
                "",
                "| | stands for the number of |",
                "| --- | --- |",
                *symbols,
            ]
        ),
    }


def filled(page: str) -> str:
    """Return the page with its parts made anew. ValueError when it has no place for one."""
    for name, text in parts().items():
        begin, end = f"<!-- {name}: made by make docs -->", f"<!-- end of {name} -->"
        head, table, remaining = page.partition(begin)
        _, closed, tail = remaining.partition(end)
        if not table or not closed:
            raise ValueError(f"the page has no lines {begin!r} and {end!r}")
        page = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return page


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
