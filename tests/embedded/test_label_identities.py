"""Label identities with the controllers' engines on embedded API servers: many Pods, few objects, two members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from devtools.apiserver import ApiServer
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.member import member_reconcilers
from mcagent.controller.settings import LeaderSettings
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from tests.embedded.controlworld import COMMON_AREA, NAMESPACE, QUICK, Objects, client_of, join
from tests.waiting import until
from tests.worlds.member_world import settings

PODS, LABELLINGS = 300, 10
MEMBERS = {"east": "10.96.0.0/16", "west": "10.97.0.0/16"}
LEADER = LeaderSettings(namespace=COMMON_AREA, stretched_network_policy=True)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Mapping[str, Objects]]:
    """Give a leader and two members that have joined, all with label identities."""
    with ExitStack() as stack:
        clusters: dict[str, Objects] = {}
        servers = {name: stack.enter_context(ApiServer(bookmark_interval=0.2)) for name in ("north", *MEMBERS)}
        for name, server in servers.items():
            directory, member = tmp_path / name, name in MEMBERS
            directory.mkdir()
            member_settings = settings(
                service_cidr=MEMBERS.get(name), heartbeat_period=1.0, stretched_network_policy=True
            )
            engine = Engine(
                tuple(member_reconcilers(member_settings) if member else leader_reconcilers(LEADER)),
                client_of(server, directory),
                namespace=NAMESPACE if member else COMMON_AREA,
                member=member,
                timing=QUICK,
            )
            clusters[name] = Objects(server)
            engine.start()
            stack.callback(engine.stop)
        spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        clusters["north"].put(Kind.CLUSTER_SET, "set", COMMON_AREA, spec=spec)
        for name in MEMBERS:
            join(clusters[name], servers["north"].url, cluster_id=name)
        yield clusters


def identities(cluster: Objects) -> dict[str, int]:
    """Return the numbers that a member has by labels."""
    raws = (cluster.get(Kind.LABEL_IDENTITY, name) for name in cluster.names(Kind.LABEL_IDENTITY))
    return {raw["spec"]["label"]: raw["spec"]["id"] for raw in raws if raw is not None}


def pod(cluster: Objects, name: str, app: str) -> None:
    """Make a Pod, or give it another label."""
    cluster.put(Kind.POD, name, "default", metadata={"labels": {"app": app}}, spec={"nodeName": "n1"})
    cluster.put_status(Kind.POD, name, {"phase": "Running", "podIP": "10.1.0.1"}, "default")


def text_of(app: str) -> str:
    """Return the identity of Pods with a label."""
    return labels.normalised("default", {}, {"app": app})


def test_pods_of_two_clusters_have_the_same_numbers_everywhere(clusters: Mapping[str, Objects]) -> None:
    """One number for each labelling, however many Pods; a Pod's new label arrives, the old stays a while."""
    east, west, north = clusters["east"], clusters["west"], clusters["north"]
    for i in range(PODS):
        pod(east if i % 2 else west, f"p{i}", f"app-{i % LABELLINGS}")
    label_texts = {text_of(f"app-{i}") for i in range(LABELLINGS)}
    until(lambda: all(identities(member).keys() == label_texts for member in (east, west)), timeout=30)
    numbers = identities(east)
    assert numbers == identities(west)
    assert len(set(numbers.values())) == LABELLINGS
    exports = [name for name in north.names(Kind.RESOURCE_EXPORT) if not name.endswith("clusterinfo")]
    assert len(exports) == LABELLINGS  # app-0, 2, ... are west's, app-1, 3, ... are east's
    pod(west, "p0", "new")
    until(lambda: text_of("new") in identities(east), timeout=10)
    assert numbers.items() <= identities(east).items()
