"""Planned hand-over of gateways under traffic: nothing is lost, it is told, and the last one stays."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import DIRECT_PORT, POD_PORT, generate
from devtools.nodes import netns
from devtools.traffic.load import Kind, Load, Stream
from devtools.waiting import wait_until
from tests.lab.gateways import told, wait_for_bfd

pytestmark = [pytest.mark.failover, pytest.mark.datapath]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters, each with two gateways and a worker."""
    lab: Lab = make_lab(generate(gateways=2))
    wait_for_bfd(lab, *lab.topology.clusters[0].nodes)
    return lab


@pytest.fixture
def load(lab: Lab) -> Iterator[Load]:
    """Streams both ways: UDP and TCP to Pods, and connections to the exported Service."""
    east, west = lab.topology.clusters
    streams = []
    for source, target in ((east, west), (west, east)):
        namespace = lab.namespace(source.workers[0].pods[0])
        pod = str(target.workers[0].pods[0].address)
        service = str(target.services[0].cluster_ip)
        tcp = Stream(
            kind=Kind.TCP, name=f"{source.name} pod", namespace=namespace, address=pod, port=DIRECT_PORT, count=20
        )
        streams += [
            replace(tcp, kind=Kind.UDP, name=f"{source.name} udp", port=POD_PORT, count=1),
            tcp,
            replace(tcp, name=f"{source.name} service", address=service, port=80),
        ]
    with Load(streams) as running:
        yield running


def assert_nothing_lost(load: Load) -> None:
    """Neither a datagram nor a connection is lost from the beginning until half a second ago."""
    time.sleep(0.5)  # what is under way is not lost: this is the span that is judged, not a wait for something
    report = load.report(load.began, time.monotonic() - 0.5)
    assert {
        name: (stream.lost, stream.broken, stream.reasons) for name, stream in report.streams.items()
    } == dict.fromkeys(report.streams, (0, 0, ()))


@pytest.mark.timing
def test_drain_and_undrain_lose_nothing(lab: Lab, load: Load) -> None:
    """By the command on the Node: it waits until others have taken over; peers tell why it is not used."""
    east = lab.topology.clusters[0]
    going, worker = east.gateways[0].name, east.workers[0].name
    output = lab.mcagent(going, "drain", "--local")
    assert "drained" in output
    assert told(lab, worker, going)["decidedBy"] == "drain"
    lab.mcagent(going, "undrain", "--local")
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used again", timeout=10)
    assert [t["live"] for t in told(lab, worker, going)["transitions"]][-2:] == [False, True]
    assert_nothing_lost(load)


def host_load(lab: Lab) -> Load:
    """Return twenty connections of a process of Node east-w1: gateways translate their source."""
    east, west = lab.topology.clusters
    stream = Stream(
        kind=Kind.TCP,
        name="host",
        namespace=lab.namespace(east.workers[0].name),
        address=str(west.workers[0].pods[0].address),
        port=DIRECT_PORT,
        count=20,
    )
    return Load([stream])


def test_drain_counts_the_connections_that_it_ends(lab: Lab) -> None:
    """Those that the gateway translates, and no others; it waits for them before, as long as --grace says."""
    going = lab.topology.clusters[0].gateways[0].name
    with host_load(lab) as load:
        began = time.monotonic()
        report = json.loads(lab.mcagent(going, "drain", "--local", "--grace", "2", "-o", "json"))
        assert time.monotonic() - began > 2
        assert report["drained"]
        assert 0 < report["ended"] == report["translated"] < 20

        def broken() -> int:
            return load.report(load.began, time.monotonic() - 0.5).streams["host"].broken

        wait_until(lambda: broken() >= report["ended"], "the translated connections to end", timeout=20)
        assert broken() == report["ended"]
    lab.mcagent(going, "undrain", "--local")


def test_drain_waits_for_the_end_of_translated_connections(lab: Lab) -> None:
    """When they are closed within --grace, the drain goes on at once, and ends none."""
    going, worker = lab.topology.clusters[0].gateways[0].name, lab.topology.clusters[0].workers[0].name
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used", timeout=20)
    flags = ("drain", "--local", "--grace", "60", "-o", "json")
    argv = netns.command(lab.namespace(going), lab.agent_command(*flags, *lab.agent_flags(going)))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with host_load(lab):
        drain = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert drain.stderr is not None
        assert "waiting at most 60 s" in (drain.stderr.readline() + drain.stderr.readline())
    output, _ = drain.communicate(timeout=60)
    report = json.loads(output)
    assert (report["translated"] > 0, report["ended"], report["drained"]) == (True, 0, True)
    lab.mcagent(going, "undrain", "--local")
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used again", timeout=20)


@pytest.mark.timing
def test_drain_by_the_api(lab: Lab, load: Load) -> None:
    """The annotation on the Node does the same, set by the command or by anybody."""
    east = lab.topology.clusters[0]
    going, worker = east.gateways[1].name, east.workers[0].name
    lab.api(east.name).patch("Node", going, {"metadata": {"annotations": {"mcagent.io/drain": "true"}}}, "")
    wait_until(lambda: not told(lab, worker, going)["live"], "the gateway to be left", timeout=20)
    lab.api(east.name).patch("Node", going, {"metadata": {"annotations": {"mcagent.io/drain": None}}}, "")
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used again", timeout=20)
    assert_nothing_lost(load)


@pytest.mark.timing
def test_the_last_gateway_does_not_go(lab: Lab, load: Load) -> None:
    """While the other one is drained a drain is refused with the reason, and no longer asked for."""
    east = lab.topology.clusters[0]
    first, second = (gateway.name for gateway in east.gateways)
    lab.mcagent(first, "drain", "--local")
    argv = lab.agent_command("drain", "--local", *lab.agent_flags(second))
    done = netns.execute(lab.namespace(second), argv, check=False)
    assert done.returncode == 1
    assert "no other gateway" in done.stderr
    lab.mcagent(first, "undrain", "--local")
    wait_until(lambda: told(lab, second, first)["live"], "the first to be back", timeout=10)
    assert told(lab, first, second)["live"]
    assert_nothing_lost(load)


@pytest.mark.timing
def test_an_agent_that_is_stopped_hands_over_first(lab: Lab, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """With drainOnStop SIGTERM drains, then ends the process; the next agent takes the gateway back."""
    east = lab.topology.clusters[0]
    going, worker = east.gateways[0].name, east.workers[0].name
    lab.stop_agent(going, kill=True)
    argv = lab.agent_command("agent", *lab.agent_flags(going), "--drain-on-stop")
    log = lab.directory(going) / "agent.log"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    lab.state.spawn(f"agent-{going}", lab.namespace(going), argv, log=log, env=env)
    lab.wait_ready(going)
    lab.stop_agent(going)
    assert not told(lab, worker, going)["live"]
    assert told(lab, worker, going)["decidedBy"] == "drain"
    lab.start_agent(going)
    lab.wait_ready(going)
    wait_until(lambda: told(lab, worker, going)["live"], "the gateway to be used again", timeout=10)
    assert_nothing_lost(load)
