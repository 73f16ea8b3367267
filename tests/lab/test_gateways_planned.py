"""Gateways come and go by the API's word under traffic: nothing is lost, and nothing is taken back unasked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE, gateway_object, import_object
from devtools.lab.topology import Topology
from devtools.traffic.load import Load
from devtools.waiting import wait_until
from mcagent.core.failover.liveness import GRACE
from tests.lab.gateways import told
from tests.worlds import failover
from tests.worlds.failover import INTERVALS, Volume, words

pytestmark = [pytest.mark.failover, pytest.mark.datapath]

VOLUME = Volume(datagrams=100, connections=12, interval=0.05)
AFTER = 1.0  # seconds that are watched after everything is told to be done
COUNTED = 6.0  # seconds: Open vSwitch writes counters every 5 s
SILENCE = 2.0  # seconds, for what is not planned
MakeLab = Callable[[Topology], Lab]


def topology(**config: object) -> Topology:
    """Return two clusters of two gateways and a worker, whose agents have this configuration as well."""
    plain = failover.topology(INTERVALS["100x3"], gateways=2, workers=1)
    return replace(
        plain, clusters=tuple(replace(cluster, config={**cluster.config, **config}) for cluster in plain.clusters)
    )


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Gateways by the API, all active."""
    return make_lab(topology())


@pytest.fixture
def load(lab: Lab, settled: Settled) -> Iterator[Load]:
    """Traffic that goes on through a test."""
    settled.wait()
    with Load(failover.streams(lab, VOLUME)) as running:
        yield running


def announce(lab: Lab, *addresses: object) -> None:
    """Tell the second cluster that these are the gateways of the first one."""
    east, west = lab.topology.clusters
    shown = import_object(east)["spec"]
    assert isinstance(shown, dict)
    infos = [{"gatewayIP": str(address)} for address in addresses]
    lab.api(west.name).patch(
        "ClusterInfoImport", f"{east.name}-clusterinfo", {"spec": {**shown, "gatewayInfos": infos}}, NAMESPACE
    )


def nothing_lost(load: Load) -> None:
    """Fail if a datagram or a connection was lost since the load began."""
    failover.pause(AFTER)
    until = time.monotonic()
    failover.pause(failover.ON_THE_WAY)
    report = load.report(load.began, until)
    assert failover.datagrams_lost(report) == failover.broken(report) == 0, words(report)


@pytest.mark.timing
def test_a_cordoned_gateway_is_left_and_taken_back(lab: Lab, load: Load, settled: Settled) -> None:
    """Cordon hands over as drain does; uncordon ends it."""
    east = lab.topology.clusters[0]
    going, worker = east.gateways[0].name, east.workers[0].name
    lab.api(east.name).patch("Node", going, {"spec": {"unschedulable": True}}, "")
    wait_until(lambda: told(lab, going, going).get("live") is False, "the hand-over", timeout=30)
    wait_until(lambda: not told(lab, worker, going)["live"], "the worker to leave it", timeout=10)
    lab.api(east.name).patch("Node", going, {"spec": {"unschedulable": None}}, "")
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used again", timeout=20)
    settled.wait()
    nothing_lost(load)


@pytest.mark.timing
def test_a_gateway_object_is_deleted_and_made_again(lab: Lab, load: Load, settled: Settled) -> None:
    """Its Node becomes a worker when its peers have moved, then a gateway again; others hear of it later."""
    east = lab.topology.clusters[0]
    going = east.gateways[1]

    def role() -> object:
        summary = lab.status(going.name)["summary"]
        assert isinstance(summary, dict)
        return summary["role"]

    lab.api(east.name).delete("Gateway", going.name, NAMESPACE)
    failover.pause(0.5)
    announce(lab, *(gateway.address for gateway in east.gateways if gateway is not going))
    wait_until(lambda: role() == "worker", "the Node to be a worker", timeout=60)
    failover.pause(AFTER)
    lab.api(east.name).create(gateway_object(east, going))
    failover.pause(0.5)
    announce(lab, *(gateway.address for gateway in east.gateways))
    wait_until(lambda: role() == "gateway", "the Node to be a gateway", timeout=30)
    settled.wait()
    nothing_lost(load)


@pytest.mark.timing
def test_a_gateway_that_reaches_no_other_cluster_is_left_by_its_own(
    lab: Lab, load: Load, settled: Settled
) -> None:
    """It asks for that by itself, so that nothing depends on which sibling a hash would pass packets to."""
    east, west = lab.topology.clusters
    alone, worker = east.gateways[0].name, east.workers[0].name
    fault = faults.loses_cluster(lab, alone, west)
    fault.inject()
    try:
        wait_until(lambda: told(lab, worker, alone)["decidedBy"] == "drain", "it to ask", timeout=10)
        assert not told(lab, worker, alone)["live"]
        own = told(lab, alone, alone)
        assert not own["live"]
        assert "reaches no other cluster" in own["why"]
        failover.pause(AFTER)
    finally:
        healed = time.monotonic()
        fault.heal()
    wait_until(lambda: told(lab, worker, alone)["live"], "it to be used again", timeout=30)
    settled.wait()
    until = time.monotonic()
    failover.pause(failover.ON_THE_WAY)
    after = load.report(healed, until)
    assert failover.datagrams_lost(after) == 0, words(after)
    assert failover.broken(load.report(load.began)) == 0


@pytest.mark.timing
def test_a_new_gateway_is_not_used_before_it_answers(lab: Lab, settled: Settled) -> None:
    """One that never does is given the grace, then it is a gateway without BFD; until then nothing goes to it."""
    settled.wait()
    east, west = lab.topology.clusters
    nobody = east.gateways[0].address + 100
    observer = west.gateways[0].name
    begin = time.monotonic()
    announce(lab, *(gateway.address for gateway in east.gateways), nobody)
    try:
        wait_until(lambda: told(lab, observer, str(nobody)), "word of it", timeout=10)
        gateways = told(lab, observer, str(nobody))
        if time.monotonic() - begin < GRACE:  # else this machine is too slow to see it
            assert not gateways["live"]
            assert gateways["damped"]
            assert "it is new" in gateways["why"]
        wait_until(lambda: told(lab, observer, str(nobody))["live"], "the end of the grace", timeout=GRACE + 10)
        assert time.monotonic() - begin > GRACE
        assert told(lab, observer, str(nobody))["bfd"] == "never"
    finally:
        announce(lab, *(gateway.address for gateway in east.gateways))
    wait_until(lambda: told(lab, observer, str(nobody)).get("gone") is not False, "it to be gone", timeout=10)
    settled.wait()


@pytest.mark.timing
def test_readiness_chooses_gateways(make_lab: MakeLab) -> None:
    """Annotated Nodes are gateways; one that is not Ready is left, and taken back, without a loss."""
    with make_lab(topology(gatewaySelection="readiness", serviceCIDRs=[])) as lab:
        east = lab.topology.clusters[0]
        for cluster in lab.topology.clusters:
            for gateway in cluster.gateways:
                annotations = {"annotations": {"multicluster.antrea.io/gateway": "true"}}
                lab.api(cluster.name).patch("Node", gateway.name, {"metadata": annotations}, "")
        going, worker = east.gateways[0].name, east.workers[0].name
        wait_until(lambda: told(lab, worker, going).get("bfd") == "answers", "the gateways", timeout=30)
        settled = Settled(lab)

        def ready(value: str) -> None:
            condition = {"type": "Ready", "status": value, "reason": "Kubelet"}
            lab.api(east.name).patch("Node", f"{going}/status", {"status": {"conditions": [condition]}}, "")

        with Load(failover.streams(lab, VOLUME)) as load:
            failover.pause(1.0)
            ready("False")
            wait_until(lambda: not told(lab, worker, going)["live"], "it to be left", timeout=10)
            assert told(lab, worker, going)["decidedBy"] == "Node readiness"
            failover.pause(AFTER)
            ready("True")
            wait_until(lambda: told(lab, worker, going)["live"], "it to be used", timeout=10)
            settled.wait()
            nothing_lost(load)


@pytest.mark.timing
def test_active_standby_takes_nothing_back(make_lab: MakeLab) -> None:
    """All goes by one gateway; when that dies by the other, and stays there when the first returns.

    The first one is the first of the API, unless the other has answered BFD before it, or it was silent for 300 ms
    since: nothing is taken back then, either.
    """
    with make_lab(topology(gateways="active-standby")) as lab:
        Settled(lab)
        east = lab.topology.clusters[0]
        worker = east.workers[0].name
        names = [gateway.name for gateway in east.gateways]
        first, second = names if active(lab, worker, names[0]) == [True] else reversed(names)
        assert active(lab, worker, first, second) == [True, False]
        with Load(failover.streams(lab, VOLUME)) as load:
            failover.pause(1.0)
            cut = faults.link_cut(lab, first)
            begin = time.monotonic()
            cut.inject()
            try:
                wait_until(lambda: active(lab, worker, first, second) == [False, True], "the second", timeout=10)
                failover.pause(SILENCE)
                during = load.report(begin)
            finally:
                end = time.monotonic()
                cut.heal()
            assert failover.broken(during) == 0, words(during)
            assert max(failover.tcp_silences(during)) < SILENCE + during.stall, words(during)
            wait_until(lambda: told(lab, worker, first)["live"], "the first to be live again", timeout=20)
            failover.pause(2.0)
            assert active(lab, worker, first, second) == [False, True]
            failover.pause(COUNTED)
            sent = told(lab, worker, first)["packetsSent"]
            failover.pause(COUNTED)
            # BFD, and next to nothing else: 50 datagrams and 100 messages a second go the other way
            assert told(lab, worker, first)["packetsSent"] - sent < 40 * COUNTED
            until = time.monotonic()
            failover.pause(failover.ON_THE_WAY)
            after = load.report(end, until)
            assert failover.datagrams_lost(after) == failover.broken(after) == 0, words(after)


def active(lab: Lab, node: str, *names: str) -> list[bool]:
    """Return which of these gateways a Node uses."""
    return [bool(told(lab, node, name)["active"]) for name in names]
