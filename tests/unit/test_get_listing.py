"""The tables of `mcagent get`: kinds as kubectl accepts them, cells, and what `-o wide` shows."""

from __future__ import annotations

import pytest

from mcagent.controller.admin.listing import LISTINGS, listing_named, rows
from mcagent.kube.source import RawObject


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("serviceexport", "serviceexport"),
        ("ServiceExports", "serviceexport"),
        ("svcex", "serviceexport"),
        ("serviceimports.multicluster.x-k8s.io", "serviceimport"),
        ("svcim", "serviceimport"),
        ("re", "resourceexport"),
        ("pods", None),
        ("s", None),
        ("", None),
    ],
)
def test_kinds_are_accepted_as_by_kubectl(text: str, kind: str | None) -> None:
    """Name, plural and short name, in any case, with the API group."""
    assert listing_named(text) == kind


def cells(kind: str, obj: RawObject, *, wide: bool = False) -> dict[str, str]:
    """Return the only row of an object by its headings."""
    (row,) = rows(kind, [{"metadata": {"name": "web", "namespace": "shop"}} | obj], 0.0, wide=wide)
    return dict(zip(LISTINGS[kind].head, row, strict=True))


def test_a_service_import_shows_its_clusters() -> None:
    """Type, address, ports and clusters; what is missing is "-"."""
    spec = {"type": "ClusterSetIP", "ips": ["10.96.0.9"], "ports": [{"port": 80, "protocol": "TCP"}]}
    row = cells(
        "serviceimport", {"spec": spec, "status": {"clusters": [{"cluster": "east"}, {"cluster": "west"}]}}
    )
    assert list(row.values()) == ["shop", "web", "ClusterSetIP", "10.96.0.9", "80/TCP", "east,west", "-"]
    assert list(cells("serviceimport", {"spec": {}}).values())[2:] == ["-"] * 5


def test_a_gateway_shows_its_live_tunnels() -> None:
    """Of all clusters together, as its agent reports them; Antrea's report none."""
    links = [{"clusterID": "west", "live": 1, "tunnels": 2}, {"clusterID": "north", "live": 1, "tunnels": 1}]
    gateway = {"gatewayIP": "192.0.2.1", "status": {"links": links}}
    assert cells("gateway", gateway)["LIVE TUNNELS"] == "2/3"
    assert cells("gateway", {"gatewayIP": "192.0.2.1"})["LIVE TUNNELS"] == "-"


@pytest.mark.parametrize(
    ("ready", "reason", "message"),
    [
        (("True", "Exported", ""), "Valid", ""),
        (("False", "Pending", "not yet"), "Valid", ""),
        (("False", "NoUsableEndpoint", "no endpoint is ready"), "NoUsableEndpoint", "no endpoint is ready"),
        (("False", "Failed", "refused"), "Failed", "refused"),
    ],
)
def test_an_export_that_nothing_answers_is_not_just_valid(
    ready: tuple[str, str, str], reason: str, message: str
) -> None:
    """Other clusters get no answer from it: the reason is that of the condition Ready."""
    conditions = [
        {"type": "Valid", "status": "True", "reason": "Valid"},
        {"type": "Conflict", "status": "False", "reason": "NoConflicts"},
        dict(zip(("type", "status", "reason", "message"), ("Ready", *ready), strict=True)),
    ]
    row = cells("serviceexport", {"status": {"conditions": conditions}})
    assert (row["VALID"], row["REASON"], row["MESSAGE"]) == ("True", reason, message)


def test_long_messages_are_cut_unless_the_table_is_wide() -> None:
    """The beginning and the end of a message stay, and control characters are escaped."""
    message = "begin \x1b[2J" + "x" * 1000 + " end"
    condition = {"type": "Valid", "status": "False", "reason": "NoService", "message": message}
    short = cells("serviceexport", {"status": {"conditions": [condition]}})["MESSAGE"]
    wide = cells("serviceexport", {"status": {"conditions": [condition]}}, wide=True)["MESSAGE"]
    assert len(short) < 450
    assert short.endswith(" end")
    assert wide == message.replace("\x1b", "\\x1b")
    assert "\x1b" not in short
