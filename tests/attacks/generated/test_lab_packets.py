"""Generated packets through a lab: none arrives in another cluster's name, and the simulator has the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from devtools.lab.topology import generate
from devtools.traffic import traffic
from flows import Flow
from flows.actions import Goto
from flows.pipeline import tables as t
from flows.simulator import SimulatedSwitch
from tests.attacks.generated.lab_packets import PacketRange, packet_classes
from tests.attacks.generated.search import search
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.datapath
BATCHES = 6  # `make attacks BUDGET=5m` has more


@pytest.fixture(scope="module")
def field(make_lab: MakeLab) -> Iterator[PacketRange]:
    """Three clusters of a gateway and a worker."""
    with make_lab(generate(clusters=3), liveness=False) as lab:
        yield PacketRange(lab)


def test_generated_packets(field: PacketRange) -> None:
    """The same packets on every run, of gateways and of Pods; some of the gateways' arrive."""
    for attacks in packet_classes(field):
        assert search(attacks, examples=BATCHES).violation == ""
    assert field.delivered


def test_a_simulator_that_differs_is_found(field: PacketRange, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator without the check of sources delivers packets that do not arrive."""
    monkeypatch.setattr(traffic, "PATIENCE", 1.0)  # seconds, for each of these packets
    network = field.network
    switches = {
        name: SimulatedSwitch.of(map(_believing, switch.flows), switch.groups.values())
        for name, switch in network.switches.items()
    }
    field.network = replace(network, switches=switches)
    try:
        result = search(packet_classes(field)[0], examples=BATCHES)
    finally:
        field.network = network
    assert "packets and simulator differ: delivered at no Node" in result.violation


def _believing(flow: Flow) -> Flow:
    if flow.table == t.SOURCE.number and not flow.actions:
        return replace(flow, actions=(Goto(t.UNTRANSLATE.number),))
    return flow
