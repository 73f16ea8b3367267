"""The MTU that a member announces for its tunnels: other clusters set it on their routes to this member."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from mcagent.core.compile import Compiler
from mcagent.core.plan.diff import diff_desired
from mcagent.model.dataplane.resources import Route
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.parsing.clusters import MTU_ANNOTATION
from mcagent.model.parsing.parse import parse_object
from mcagent.model.plan import Desired, Op
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.claims import NEW, NO_FACTS, RAW, WEST, has, unharmed
from tests.worlds.core_inputs import HOME, cluster, config, snapshot

by_member = partial(attack, Group.OBJECTS, Attacker.MEMBER)

NORTH = cluster("north", "10.103.0.0/16", "10.30.0.0/16", gateways=("192.168.3.11",), created=NEW)
MTU = 1400  # of the tunnels of home


def route_mtus(desired: Desired, cluster: str) -> set[int]:
    """Return the MTUs of the routes to a cluster by the bridge."""
    resources = desired.fragments[f"cluster/{cluster}"].resources
    return {route.mtu for route in resources if isinstance(route, Route) and route.device}


@by_member(
    wants="stop agents or traffic by announcing an MTU that no packet fits into, or that no device has",
    stopped_by="the range of the annotation, 576 to 65535: anything else counts as none, with a warning; the MTU "
    "is set only on routes to the member itself, and only if it is smaller than one's own",
)
@pytest.mark.parametrize(
    "announced",
    ["0", "68", "575", "65536", "1000000000", "-1", "1e3", "0x600", "1400 ", "٩٩٩", "", "9" * 5000, 1300],
)
def test_an_mtu_that_makes_no_sense(announced: object) -> None:
    """Its routes have the MTU of routes to other clusters, which are as without it, and it is reachable."""
    raw = {
        **RAW,
        "metadata": {
            "name": "north-clusterinfo",
            "namespace": "mc",
            "creationTimestamp": NEW,
            "annotations": {MTU_ANNOTATION: announced},
        },
        "spec": {
            "clusterID": "north",
            "serviceCIDR": "10.103.0.0/16",
            "gatewayInfos": [{"gatewayIP": "192.168.3.11"}],
        },
    }
    parsed = parse_object(raw)
    north = parsed.value
    assert isinstance(north, ClusterInfoImport)
    assert north.mtu == 0
    assert [p.path for p in parsed.problems] == ([f"metadata.annotations.{MTU_ANNOTATION}"] if announced else [])
    decided = unharmed(WEST, north)
    assert has(decided, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
    mtus = {name: route_mtus(decided.desired, name) for name in ("north", "west")}
    assert mtus["north"] == mtus["west"]
    assert len(mtus["west"]) == 1


@by_member(
    wants="make other clusters lose packets or compute for ever by announcing another MTU all the time",
    stopped_by="the incremental engine and changes in place: an MTU concerns the routes to the member itself, "
    "which are never removed for it",
)
@pytest.mark.parametrize("on", ["g1", "w1"])
def test_an_mtu_that_changes_all_the_time(on: str) -> None:
    """Each change replaces routes to the attacker where they are; all else is the same object as before."""
    compiler, settings = Compiler(), config(on, enable_pod_to_pod=True, mtu=MTU)
    before = compiler.compile(snapshot(*HOME, WEST, NORTH), NO_FACTS, settings).desired
    for announced in (576, 1300, 65535, 1399, 0):
        north = replace(NORTH, mtu=announced)
        after = compiler.compile(snapshot(*HOME, WEST, north), NO_FACTS, settings).desired
        changed = {
            name for name, fragment in after.fragments.items() if fragment is not before.fragments.get(name)
        }
        assert changed <= {"cluster/north"}
        steps = [step for stage in diff_desired(before, after).stages for step in stage.steps]
        assert {type(step.resource) for step in steps} <= {Route}
        assert {step.op for step in steps} <= {Op.REPLACE}
        assert route_mtus(after, "north") == {min(announced or MTU, MTU)}
        before = after
