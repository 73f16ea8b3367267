"""The bridge's connection tracking table, as a real Open vSwitch reports it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from flows.actions import Ct, Output
from flows.fields import IP_TCP, IP_UDP, eth_type_of
from flows.flow import Flow, Match
from flows.simulator import Packet
from flows.simulator.packet import SYN
from mcagent.dataplane.connection_table import open_connections, table_use
from mcagent.model.dataplane.facts import DatapathType
from tests.contract.ovs_values import DATAPATH
from tests.contract.real_switch import RealSwitch

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
