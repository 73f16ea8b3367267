"""The bridge's connection tracking table, as a real Open vSwitch reports it."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.actions import Ct, Nat, Output, ToController
from flows.fields import IP_TCP, IP_UDP, eth_type_of
from flows.flow import Flow, Match
from flows.simulator import Packet
from flows.simulator.packet import SYN
from mcagent.dataplane.connection_table import delete_connection, open_connections, table_use
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.dataplane.facts import DatapathType
from tests.contract.ovs_values import DATAPATH
from tests.contract.real_switch import BRIDGE, RealSwitch

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

ZONE, OTHER = 28010, 28011
SERVER = ip_address("10.2.0.1")
REQUEST = Packet(
    in_port=1, src=ip_address("10.1.0.1"), dst=SERVER, proto=IP_TCP, src_port=40000, dst_port=80, tcp_flags=SYN
)
TRACKED = Flow(
    table=0, priority=9, match=Match((eth_type_of(SERVER),)), actions=(Ct(ZONE, commit=True), Output(2))
)


def test_open_connections_of_a_zone_are_counted(fresh_ovs: OvsInstance) -> None:
    """TCP connections that have begun: those of other zones, and of other protocols, are left out."""
    with closing(RealSwitch.create(fresh_ovs, (1, 2))) as switch:
        switch.load([TRACKED], ())
        assert open_connections(fresh_ovs.appctl, DATAPATH, ZONE) == 0
        for number in range(3):
            switch.inject(replace(REQUEST, src_port=40000 + number), 1)
        switch.inject(replace(REQUEST, proto=IP_UDP, tcp_flags=0), 1)
        assert open_connections(fresh_ovs.appctl, DATAPATH, ZONE) == 3
        assert open_connections(fresh_ovs.appctl, DATAPATH, OTHER) == 0


def test_a_full_table_is_seen(fresh_ovs: OvsInstance) -> None:
    """Entries and limit; of the userspace datapath also how many entries found no place in the last hour."""
    with closing(RealSwitch.create(fresh_ovs, (1, 2))) as switch:
        switch.load([TRACKED], ())
        if DATAPATH is DatapathType.SYSTEM:
            use = netns.call(fresh_ovs.namespace, lambda: table_use(fresh_ovs.appctl, DATAPATH))
            assert use is not None
            assert use.limit > use.entries >= 0
            assert use.refused is None
            return
        fresh_ovs.appctl("dpctl/ct-set-maxconns", "2")
        use = table_use(fresh_ovs.appctl, DATAPATH)
        assert use is not None
        assert (use.entries, use.limit, use.refused) == (0, 2, 0)
        for number in range(5):
            switch.inject(replace(REQUEST, src_port=40000 + number), 1 if number < 2 else 0)
        use = table_use(fresh_ovs.appctl, DATAPATH)
        assert use is not None
        assert (use.entries, use.limit, use.share) == (2, 2, 1.0)


@pytest.mark.parametrize("protocol", [IP_UDP, IP_TCP])
def test_the_connection_of_a_packet_that_the_agent_gets_is_deleted_and_no_other(
    fresh_ovs: OvsInstance, protocol: int
) -> None:
    """The agent gets the addresses and ports before translation. One that is gone already is no harm to others."""
    translated = Ct(ZONE, commit=True, nat=Nat("dst", ip_address("10.2.0.9"), 8080), table=1)
    matched = Match((eth_type_of(SERVER),))
    flows = [
        Flow(table=0, priority=9, match=matched, actions=(Ct(OTHER, commit=True), translated)),
        Flow(table=1, priority=9, match=matched, actions=(ToController(64),)),
    ]
    backend, ended = OpenFlowBackend(fresh_ovs.mgmt(BRIDGE)), list[OriginalTuple]()
    answered: list[int] = []
    with closing(RealSwitch.create(fresh_ovs, (1, 2))) as switch, closing(backend):
        switch.load(flows, ())
        backend.watch(lambda: answered.append(1), lambda: None, on_ended=ended.append)
        wait_until(lambda: answered, "the first answer of the bridge")
        flags = SYN if protocol == IP_TCP else 0
        for number in range(2):
            switch.inject(replace(REQUEST, src_port=40000 + number, proto=protocol, tcp_flags=flags), 0)
        wait_until(lambda: len(ended) == 2, "both connections")
        client = ip_address("10.1.0.1")
        assert ended == [OriginalTuple(protocol, client, 40000 + number, SERVER, 80) for number in range(2)]

        def ports(zone: int) -> list[str]:
            shown = fresh_ovs.appctl("dpctl/dump-conntrack", f"zone={zone}")
            return sorted(re.findall(r"orig=\([^)]*sport=(\d+)", shown))

        assert ports(ZONE) == ["40000", "40001"]
        delete_connection(fresh_ovs.appctl, DATAPATH, ZONE, ended[0])
        assert (ports(ZONE), ports(OTHER)) == (["40001"], ["40000", "40001"])
