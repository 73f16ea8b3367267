"""The simulator's connection tracking: states, NAT both ways, related errors, and that it is a value."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from flows.actions import Nat
from flows.fields import CT_DNAT, CT_EST, CT_INV, CT_NEW, CT_REL, CT_RPL, CT_SNAT, CT_TRK, IP_ICMP, IP_UDP
from flows.simulator import ConnectionTable, CtRequest, Datapath, MaskedValue, Packet
from flows.simulator.packet import ACK, ECHO_REPLY, ECHO_REQUEST, RST, SYN, UNREACHABLE

CLIENT, SERVICE, POD, GATEWAY = (ip_address(a) for a in ("10.1.0.5", "10.97.0.1", "10.2.0.9", "192.0.2.1"))
ZONE = 7


def syn(port: int = 4000) -> Packet:
    """Return the first packet of a connection from the client to the Service."""
    return Packet(in_port=1, src=CLIENT, dst=SERVICE, src_port=port, dst_port=80, tcp_flags=SYN)


def test_connection_becomes_established_with_the_reply() -> None:
    """The kernel calls a connection new until a reply is seen, in both actions and words."""
    table = ConnectionTable()
    first = table.track(syn(), CtRequest(zone=ZONE))
    assert (first.state, first.zone) == (CT_NEW | CT_TRK, ZONE)
    assert first.table.zone(ZONE) == ()
    table = first.table.track(syn(), CtRequest(zone=ZONE, commit=True)).table
    assert table.track(syn(), CtRequest(zone=ZONE)).state == CT_NEW | CT_TRK
    back = table.track(syn().reply(), CtRequest(zone=ZONE))
    assert back.state == CT_EST | CT_RPL | CT_TRK
    assert back.table.track(syn(), CtRequest(zone=ZONE)).state == CT_EST | CT_TRK
    assert table.track(syn(), CtRequest(zone=ZONE + 1)).state == CT_NEW | CT_TRK


def test_the_table_is_a_value() -> None:
    """Tracking returns a new table and leaves the old one as it was."""
    empty = ConnectionTable()
    full = empty.track(syn(), CtRequest(zone=ZONE, commit=True)).table
    assert empty == ConnectionTable()
    assert len(full.zone(ZONE)) == 1
    assert full.without(ZONE).zone(ZONE) == ()


def test_userspace_datapath_differs_in_when_a_connection_is_established() -> None:
    """In the userspace datapath TCP is established at its second packet, UDP only with a reply."""
    table = ConnectionTable(datapath=Datapath.USERSPACE)
    udp = replace(syn(), proto=IP_UDP)
    for packet, states in ((syn(), [CT_EST, CT_EST]), (udp, [CT_NEW, CT_NEW])):
        now = table.track(packet, CtRequest(zone=ZONE, commit=True)).table
        for state in states:
            again = now.track(packet, CtRequest(zone=ZONE))
            assert again.state == state | CT_TRK
            now = again.table


def test_destination_nat_both_ways() -> None:
    """A translated connection reaches the endpoint, and its reply carries the Service's address again."""
    nat = Nat("dst", POD, 8080)
    request = ConnectionTable().track(syn(), CtRequest(zone=ZONE, commit=True, nat=nat))
    assert (request.packet.dst, request.packet.dst_port) == (POD, 8080)
    assert request.state == CT_NEW | CT_TRK | CT_DNAT
    back = request.table.track(request.packet.reply(), CtRequest(zone=ZONE, nat=Nat()))
    assert (back.packet.src, back.packet.src_port, back.packet.dst) == (SERVICE, 80, CLIENT)
    assert back.state == CT_EST | CT_RPL | CT_TRK | CT_SNAT
    other = Nat("dst", GATEWAY, 1)
    again = back.table.track(syn(), CtRequest(zone=ZONE, commit=True, nat=other))
    assert again.packet.dst == POD, "the endpoint was chosen by the first packet"


def test_kernel_does_not_translate_a_new_connection_without_being_told_how() -> None:
    """A second packet before any reply is still new and untranslated by a plain `nat` in the kernel only."""
    for datapath, translated in ((Datapath.KERNEL, False), (Datapath.USERSPACE, True)):
        table = ConnectionTable(datapath=datapath)
        table = table.track(syn(), CtRequest(zone=ZONE, commit=True, nat=Nat("dst", POD, 8080))).table
        assert (table.track(syn(), CtRequest(zone=ZONE, nat=Nat())).packet.dst == POD) is translated


def test_source_nat_chooses_another_port_when_the_first_is_taken() -> None:
    """Clients with one source port share an address, and each gets its own reply back."""
    nat = Nat("src", GATEWAY)
    first = ConnectionTable().track(syn(), CtRequest(zone=ZONE, commit=True, nat=nat))
    other_client = replace(syn(), src=ip_address("10.1.0.6"))
    second = first.table.track(other_client, CtRequest(zone=ZONE, commit=True, nat=nat))
    assert first.packet.src == second.packet.src == GATEWAY
    assert first.packet.src_port == 4000 != second.packet.src_port
    assert second.packet.src_port in range(1024, 65536)
    third_client = replace(syn(), src=ip_address("10.1.0.7"))
    third = second.table.track(third_client, CtRequest(zone=ZONE, commit=True, nat=nat))
    assert third.packet.src_port not in {4000, second.packet.src_port}
    for sent, tracked in ((syn(), first), (other_client, second), (third_client, third)):
        back = third.table.track(tracked.packet.reply(), CtRequest(zone=ZONE, nat=Nat())).packet
        assert (back.dst, back.dst_port) == (sent.src, sent.src_port)


def test_mark_and_label_are_written_by_bits() -> None:
    """A commit writes only the masked bits, and either direction reads them."""
    low = CtRequest(
        zone=ZONE, commit=True, mark=MaskedValue(value=0x5, mask=0xF), label=MaskedValue(value=9, mask=0xFF)
    )
    table = ConnectionTable().track(syn(), low).table
    high = CtRequest(zone=ZONE, commit=True, mark=MaskedValue(value=0x70, mask=0xF0))
    back = table.track(syn(), high).table.track(syn().reply(), CtRequest(zone=ZONE))
    assert (back.mark, back.label) == (0x75, 9)


def test_icmp_error_follows_the_connection_it_is_about() -> None:
    """A router's error about a translated packet reaches the client, quoting what the client sent."""
    request = ConnectionTable().track(syn(), CtRequest(zone=ZONE, commit=True, nat=Nat("dst", POD, 8080)))
    error = Packet(in_port=2, src=GATEWAY, dst=CLIENT, proto=IP_ICMP, icmp_type=UNREACHABLE, quoted=request.packet)
    back = request.table.track(error, CtRequest(zone=ZONE, nat=Nat()))
    assert back.state & (CT_REL | CT_RPL) == CT_REL | CT_RPL
    assert back.packet.dst == CLIENT
    assert back.packet.quoted is not None
    assert (back.packet.quoted.dst, back.packet.quoted.dst_port) == (SERVICE, 80)
    assert ConnectionTable().track(error, CtRequest(zone=ZONE)).state == CT_INV | CT_TRK


@pytest.mark.parametrize(
    ("packet", "may"),
    [
        (syn(), True),
        (replace(syn(), tcp_flags=ACK), True),
        (replace(syn(), tcp_flags=SYN | ACK), False),
        (replace(syn(), proto=IP_ICMP, icmp_type=ECHO_REQUEST, src_port=3), True),
        (replace(syn(), proto=IP_ICMP, icmp_type=ECHO_REPLY, src_port=3), False),
    ],
)
def test_what_may_begin_a_connection(packet: Packet, may: bool) -> None:
    """The middle of a TCP connection is picked up, a reply without a request is invalid."""
    assert bool(ConnectionTable().track(packet, CtRequest(zone=ZONE)).state & CT_NEW) is may


def test_only_the_userspace_datapath_begins_with_a_reset() -> None:
    """A reset of no known connection is invalid to the kernel, and new to the userspace datapath."""
    reset = replace(syn(), tcp_flags=RST)
    states = [ConnectionTable(datapath=datapath).track(reset, CtRequest(zone=ZONE)).state for datapath in Datapath]
    assert states == [CT_INV | CT_TRK, CT_NEW | CT_TRK]


def test_force_makes_this_direction_the_original_one() -> None:
    """`force` with `commit` replaces a connection that knew the packet as a reply."""
    table = ConnectionTable().track(syn(), CtRequest(zone=ZONE, commit=True)).table
    turned = table.track(syn().reply(tcp_flags=ACK), CtRequest(zone=ZONE, commit=True, force=True)).table
    assert turned.track(replace(syn(), tcp_flags=ACK), CtRequest(zone=ZONE)).state & CT_RPL
    assert len(turned.zone(ZONE)) == 1
