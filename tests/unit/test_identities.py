"""The label identities that an agent gives its Pods, and those that it believes of other clusters."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mcagent.core.compile import compile_desired
from mcagent.core.policies.identities import IDENTITY_NEEDS
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.errors import InputError
from mcagent.model.objects import ApiObject, Kind, LabelIdentity
from mcagent.model.parsing.labels import label_hash
from mcagent.model.parsing.parse import parse_object
from tests.worlds.core_inputs import HOME, cluster, config, label_identity, namespace, pod, resources, snapshot

WEB = "ns:kubernetes.io/metadata.name=default&pod:app=web"
DB = "ns:kubernetes.io/metadata.name=default&pod:app=db"
OBJECTS = (*HOME, cluster("east", "10.97.0.0/16"), namespace("default"))


def identity_flows(*objects: ApiObject, on: str = "g1") -> list[tuple[str, str]]:
    """Return matches and actions of table Identity but those that every Node has."""
    compiled = compile_desired(snapshot(*OBJECTS, *objects), Facts(), config(on, stretched_network_policy=True))
    flows = [r for r in resources(compiled) if isinstance(r, FlowEntry)]
    return sorted((flow.match, flow.actions) for flow in flows if flow.table == 12 and flow.priority == 100)


def test_what_a_pod_sends_has_the_number_of_its_labels() -> None:
    """By its Namespace's labels and its own, on its own Node only; without a number it stays unknown."""
    web, db = pod("a", "w1", "10.10.3.5", labels="app=web"), pod("b", "w1", "10.10.3.6", labels="app=db")
    marked = [("ip,reg0=0x1/0xf,nw_src=10.10.3.5", "set_field:0x7->tun_id,ct(table=14,zone=28003)")]
    assert identity_flows(web, db, label_identity(WEB, 7), on="w1") == marked
    assert identity_flows(web, label_identity(WEB, 7), on="g1") == []
    assert identity_flows(replace(web, labels="app=x"), label_identity(WEB, 7), on="w1") == []
    assert identity_flows(web, namespace("default", "team=a"), label_identity(WEB, 7), on="w1") == []


def test_of_two_pods_with_one_address_the_newer_has_it() -> None:
    """The older is about to go, and its number with it, also where the newer has none."""
    old = pod("z", "w1", "10.10.3.5", created="2026-01-01T00:00:00Z", labels="app=web")
    new = pod("a", "w1", "10.10.3.5", created="2026-01-02T00:00:00Z", labels="app=db")
    assert identity_flows(old, new, label_identity(WEB, 7), on="w1") == []


def test_a_gateway_believes_each_cluster_its_own_numbers() -> None:
    """Those of clusters that it does not know are nobody's; those without any owner are everybody's."""
    identities = (label_identity(WEB, 7, "east", "nowhere"), label_identity(DB, 8, believed=True))
    grace = label_identity(WEB.replace("web", "old"), 9)
    (east, anybody) = identity_flows(*identities, grace)
    assert re.fullmatch("ip,reg0=0x4/0xf,reg1=0x[0-9a-f]+,tun_id=0x7", east[0])
    assert anybody == ("ip,reg0=0x4/0xf,tun_id=0x8", "goto_table:20")
    assert identity_flows(*identities, grace, on="w1") == []


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_kinds_are_read_only_where_policies_are_on(on: str) -> None:
    """Namespaces, numbers, and of Pods those of this Node."""
    off, found = (
        compile_desired(snapshot(*OBJECTS), Facts(), config(on, stretched_network_policy=value))
        for value in (False, True)
    )
    assert not off.needs & IDENTITY_NEEDS
    assert found.needs >= IDENTITY_NEEDS
    assert not found.state.all_pods


def raw_identity(**spec: Any) -> dict[str, Any]:
    """Return a LabelIdentity as the API server has it."""
    annotations = {"mcagent.io/exporters": "east,west"}
    return {
        "metadata": {"name": label_hash(WEB), "annotations": annotations},
        "spec": {"label": WEB, "id": 7} | spec,
    }


def test_a_label_identity_is_read() -> None:
    """With the clusters that have such Pods; none and not known are two things."""
    (whole, nobody, unknown) = (raw_identity() for _ in range(3))
    nobody["metadata"]["annotations"] = {"mcagent.io/exporters": ""}
    unknown["metadata"]["annotations"] = {}
    values = [parse_object(one, Kind.LABEL_IDENTITY).value for one in (whole, nobody, unknown)]
    assert all(isinstance(one, LabelIdentity) and (one.label, one.id) == (WEB, 7) for one in values)
    assert [getattr(one, "clusters", "") for one in values] == [{"east", "west"}, frozenset(), None]


@pytest.mark.parametrize("number", [0, -1, 0xFFFFFF, 1 << 24, "7", True, None])
def test_a_number_that_is_none_is_refused(number: object) -> None:
    """0 and 0xffffff mean something else, and what does not fit a VNI would be somebody else's number."""
    with pytest.raises(InputError, match="must be"):
        parse_object(raw_identity(id=number), Kind.LABEL_IDENTITY)
