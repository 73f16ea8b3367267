"""BFD adapts to the path between clusters: false alarms and long round trips, and not real failures.

On the userspace datapath only: round trips in a test kernel are longer than the interval, and lengthen the time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.waiting import wait_until
from mcagent.core.tunnel_probes import EXAMINED_AFTER
from tests.waiting import allowed
from tests.worlds.failover import pause

INTERVAL = 0.2  # seconds: longer than round trips on a busy machine, which would need a longer time
CONFIGURED = 0.6  # seconds: 3 intervals
EXAMINATION = 5.0  # seconds until the agents have judged an alarm: probes for 2 s, which are lost after 2 s
TRIES = 10  # a busy machine makes an outage longer than it should be, which is then a real one


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and one worker."""
    plain = generate(gateways=2, workers=1)
    config: dict[str, object] = {"bfd": {"remote": {"interval": f"{INTERVAL}s", "adapt": True}}}
    return make_lab(
        replace(plain, clusters=tuple(replace(c, config={**c.config, **config}) for c in plain.clusters))
    )


def tunnels(lab: Lab, name: str) -> dict[str, Any]:
    """Return what a gateway says of those of the other cluster, by tunnel."""
    groups: Any = lab.status(name)["gateways"]
    return {one["tunnel"]: one for group in groups if not group["own"] for one in group["gateways"]}


def between(lab: Lab, name: str, peer: str) -> str:
    """Return a gateway's tunnel to one of the other cluster."""
    address = str(lab.topology.node(peer)[1].address)
    return next(tunnel for tunnel, gateway in tunnels(lab, name).items() if gateway["address"] == address)


def is_up(lab: Lab, name: str, tunnel: str) -> bool:
    """Tell whether the session of a tunnel is up at both ends, with fast intervals."""
    return any(
        session.up and max(session.tx, session.rx) < 1000
        for session in faults.sessions(lab, name)
        if session.port == tunnel
    )


def is_lost(lab: Lab, name: str, tunnel: str) -> bool:
    """Tell whether a gateway's session of a tunnel is down."""
    return not any(session.forwarding for session in faults.sessions(lab, name) if session.port == tunnel)


def detection(lab: Lab, ends: dict[str, str]) -> set[float]:
    """Return the detection times that both ends of a tunnel say, in seconds."""
    return {tunnels(lab, name)[tunnel]["detectionSeconds"] for name, tunnel in ends.items()}


def lose(lab: Lab, fault: faults.Fault, ends: dict[str, str], seconds: float = 0.0) -> float:
    """Have both ends lose a tunnel, for so many seconds more; return the time until one end had lost it.

    It was up for long enough to be examined then. Returns when it is up again and both agents have judged.
    """
    pause(EXAMINED_AFTER)
    began = time.monotonic()
    fault.inject()
    try:
        wait_until(lambda: any(is_lost(lab, *end) for end in ends.items()), "the loss", timeout=20, interval=0.01)
        detected = time.monotonic() - began
        pause(seconds)
    finally:
        fault.heal()
    wait_until(lambda: all(is_up(lab, *end) for end in ends.items()), "the session to be up again", timeout=30)
    pause(EXAMINATION)
    return detected


@pytest.mark.timing
def test_real_failures_do_not_slow_detection_down(lab: Lab, settled: Settled) -> None:
    """Of a link, of one direction, of ovs-vswitchd: each for two seconds, as in the benchmark of failover."""
    settled.wait()
    near, far = (cluster.gateways[1].name for cluster in lab.topology.clusters)
    ends = {near: between(lab, near, far), far: between(lab, far, near)}
    for fault in (
        faults.link_cut(lab, far),
        faults.one_way(lab, far, outgoing=True),
        faults.lossy(lab, far, 0.6),
        faults.vswitchd_killed(lab, far),
    ):
        lose(lab, fault, ends, seconds=2.0)
        settled.wait()
        assert {tunnel["detectionSeconds"] for name in ends for tunnel in tunnels(lab, name).values()} == {
            CONFIGURED
        }, fault


@pytest.mark.timing
def test_a_false_alarm_makes_the_time_longer_for_its_tunnel(lab: Lab, settled: Settled) -> None:
    """At both ends, and only there. A real failure is then detected within that time, and changes nothing."""
    settled.wait()
    near, far = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    ends = {near: between(lab, near, far), far: between(lab, far, near)}
    others = {name: tunnels(lab, name).keys() - {tunnel} for name, tunnel in ends.items()}
    apart = faults.loses(lab, near, far)
    for _ in range(TRIES):
        if min(detection(lab, ends)) > CONFIGURED:
            break
        lose(lab, apart, ends)
    longer = max(detection(lab, ends))
    assert min(detection(lab, ends)) > CONFIGURED
    assert {tunnels(lab, name)[other]["detectionSeconds"] for name in ends for other in others[name]} == {
        CONFIGURED
    }
    for name, tunnel in ends.items():
        assert (
            f"detection time {2 * CONFIGURED:g} s instead of {CONFIGURED:g} s (a false alarm)"
            in (lab.directory(name) / "agent.log").read_text()
        )
        match = re.search(
            rf'^mcagent_tunnel_bfd_detection_seconds{{.*"{tunnel}".*}} (\S+)$', lab.http(name, "/metrics")[1], re.M
        )
        assert match is not None
        assert float(match[1]) > CONFIGURED
    settled.wait()
    assert lose(lab, faults.link_cut(lab, far), ends, seconds=longer + 2.0) < allowed(longer + 0.3)
    assert max(detection(lab, ends)) == longer


@pytest.mark.timing
def test_a_restarted_agent_keeps_the_time(lab: Lab, settled: Settled) -> None:
    """It is in the database, and the session stays up."""
    settled.wait()
    near, far = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    tunnel = between(lab, near, far)
    lab.stop_agent(near)
    lab.ovs(near).vsctl("set", "interface", tunnel, "bfd:mult=12")
    lab.start_agent(near)
    wait_until(lambda: lab.ready(near) and tunnels(lab, near)[tunnel]["probes"], "the agent to probe", timeout=60)
    gateway = tunnels(lab, near)[tunnel]
    assert (gateway["detectionSeconds"], gateway["live"], gateway["flaps"]) == (
        pytest.approx(4 * CONFIGURED),
        True,
        0,
    )
    assert 'mult="12"' in lab.ovs(near).vsctl("get", "interface", tunnel, "bfd")
