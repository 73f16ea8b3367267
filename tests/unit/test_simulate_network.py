"""The simulated network: hops by tunnels, deliveries to kernels, lost ports, and that it is a value."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from flows import actions as act
from flows.actions import Nat
from flows.flow import Flow, Match
from flows.simulator import Datapath, Packet, SimulatedSwitch
from tests.worlds.switch_network import Network

ZONE = 7
SYN = Packet(in_port=1, src=ip_address("10.1.0.5"), dst=ip_address("10.2.0.9"), src_port=4000, dst_port=80)


def switch(*actions: act.Action) -> SimulatedSwitch:
    """Return a switch that does the same with every packet."""
    return SimulatedSwitch.of([Flow(0, 1, Match.of(), actions)])


NETWORK = Network(
    switches={
        "a": switch(act.Ct(ZONE, commit=True, nat=Nat("dst", ip_address("10.2.0.1"), 8080)), act.Output(5)),
        "b": switch(act.Output(1)),
    },
    tunnels={("a", 5): ("b", 6), ("b", 6): ("a", 5)},
)


def test_a_packet_arrives_by_the_other_end_of_the_tunnel() -> None:
    """The next switch sees its own port number, and the kernel of that Node gets the packet."""
    walk = NETWORK.send("a", SYN)
    assert walk.path == ("a", "b")
    ((name, delivered),) = walk.deliveries
    assert (name, delivered.in_port, delivered.dst) == ("b", 6, ip_address("10.2.0.1"))
    assert not walk.drops
    assert not walk.problems
    assert str(walk).splitlines()[-1] == f"delivered at b: {delivered}"


def test_a_packet_ends_where_its_port_is_lost_or_missing() -> None:
    """The drop names the switch and the port; a cut port is not known to groups, a dead one is."""
    assert NETWORK.live("a") == {1, 5}
    assert NETWORK.losing("b").live("a") == NETWORK.cutting(("a", "b")).live("a") == {1}
    cut = replace(NETWORK, cut=frozenset({("b", 6)}))
    assert cut.live("a") == {1, 5}
    for network in (NETWORK.losing("b"), NETWORK.cutting(("b", "a")), cut):
        walk = network.send("a", SYN)
        assert (walk.deliveries, walk.drops) == ((), ("a: port 5 is cut off",))
    silent = replace(NETWORK, silent=frozenset({("a", 5)}))
    assert silent.live("a") == {1}
    assert silent.send("a", SYN).deliveries
    assert replace(NETWORK, tunnels={}).send("a", SYN).drops == ("a: port 5 does not exist",)


def test_a_loop_of_switches_ends() -> None:
    """It is reported after a number of hops."""
    looping = Network(
        switches={"a": switch(act.Output(5)), "b": switch(act.Output(7))},
        tunnels={("a", 5): ("b", 6), ("b", 6): ("a", 5), ("a", 8): ("b", 7), ("b", 7): ("a", 8)},
    )
    walk = looping.send("a", SYN)
    assert walk.problems == ("more than 64 hops: a loop between switches",)


def test_connections_are_kept_in_the_network_that_is_returned() -> None:
    """They can be flushed, or expire without being swept, on single switches."""
    after = NETWORK.over(Datapath.USERSPACE).send("a", SYN).network
    assert NETWORK.connections == {}
    assert len(after.connections["a"].zone(ZONE)) == 1
    assert after.forgetting(ZONE, "b").connections == after.connections
    assert after.forgetting(ZONE, "a").connections["a"].zone(ZONE) == ()
    expired = after.expiring(ZONE, "a").connections["a"]
    assert (expired.zone(ZONE), len(expired.unswept)) == ((), 1)
    assert after.expiring(ZONE, "b").connections == after.connections
    assert after.over(Datapath.KERNEL).connections == {}
