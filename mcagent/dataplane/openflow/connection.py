"""OpenFlow 1.5 on a bridge's management socket: the messages that ovs-ofctl(8) cannot send.

They watch flows and groups, change meters, send packets through the flows or out by ports, and receive packets
that flows send to the agent. They also read meters and count the packets of a few flows, which takes a process
with ovs-ofctl. Sources: OpenFlow Switch Specification 1.5.1, sections 7.1.1 (header), 7.2.3 (matches), 7.2.4.2
(statistics), 7.3.2 (configuration), 7.3.4.5 (meters), 7.3.5.4 (aggregate flow statistics), 7.3.5.14 (meter
description), 7.3.5.18 (flow monitor), 7.3.6 (packet-out), 7.3.7 (barrier), 7.3.10 (asynchronous messages), 7.4.1
(packet-in) and 7.4.6 (request forward). Open vSwitch sends packets and requests to connections of its management
socket only if they have set a miss_send_len (ofproto/connmgr.c, ofconn_receives_async_msg).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.dataplane.resources import MeterEntry
from mcagent.model.plan import Op, Step

TIMEOUT = 5.0  # seconds for each answer
BATCH = 128  # messages; ovs-vswitchd does other things in between

_VERSION = 6  # OpenFlow 1.5
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, SET_CONFIG, PACKET_IN = 0, 1, 2, 3, 9, 10
PACKET_OUT, BARRIER_REQUEST, BARRIER_REPLY = 13, 20, 21
MULTIPART_REQUEST, MULTIPART_REPLY, SET_ASYNC, METER_MOD, REQUESTFORWARD = 18, 19, 28, 29, 32

_HEADER = struct.Struct("!BBHI")  # version, type, length, transaction number
_MULTIPART = struct.Struct("!HH4x")  # type, flags
_AGGREGATE, _METER_DESC, _FLOW_MONITOR = 2, 10, 16
_AGGREGATE_REQUEST = struct.Struct("!B3xII4xQQHH4x")  # table, out port, out group, cookie, mask; an empty match
_EVERY_BIT = 0xFFFFFFFFFFFFFFFF
_FIRST_FRAGMENTS_HAVE_PORTS = 3  # OFPC_FRAG_NX_MATCH; a new bridge shows flows no ports of first fragments either
_STATISTICS = struct.Struct("!HH")  # reserved, length of both and all fields
_OXS_PACKETS = 0x80020808  # class basic, field 4, 8 bytes
_MONITOR = struct.Struct("!IIIHBB HH4x")  # id, out port, out group, flags, table, command; an empty match
_ANY = 0xFFFFFFFF
_ALL_TABLES = 0xFF
ADDED, REMOVED, MODIFIED, ABBREV, PAUSED, RESUMED = range(1, 7)  # events of a flow monitor
_MONITOR_ADD, _MONITOR_REMOVED, _MONITOR_MODIFY = 1 << 1, 1 << 2, 1 << 3
_PROPERTY = struct.Struct("!HHI")  # type, length, reasons
_ASYNC_PROPERTIES = 12  # kinds of message, each for slaves (even) and for others (odd)
_PACKET_TO_MASTER, _FORWARD_TO_MASTER = 1, 11
# Reasons: apply_action, and packet_out where another bridge of the same ovs-vswitchd sent it; group_mod.
_BY_ACTION, _GROUP_MOD = 1 << 1 | 1 << 5, 1 << 0
_UPDATE = struct.Struct("!HH")  # length, event
_COOKIE = struct.Struct("!16xQ")  # in an update of a flow
_PACKET_OUT = struct.Struct("!IH2x")  # buffer, length of actions
_NO_BUFFER = 0xFFFFFFFF
_IN_PORT = struct.Struct("!HHIIxxxx")  # a match: type OXM, its length, the field's header, the port; padding
_OXM_IN_PORT = 0x80000004  # class basic, field 0, 4 bytes
_PACKET_IN = struct.Struct("!IHBBQ HH")  # buffer, length, reason, table, cookie; of the match: type, length
_OXM = struct.Struct("!I")
# Headers of ct_nw_proto, ct_nw_src, ct_nw_dst, ct_tp_src and ct_tp_dst: class Nicira 1, field, length
# (include/openvswitch/meta-flow.h of Open vSwitch).
_CONNECTION_FIELDS = tuple(
    1 << 16 | field << 9 | length for field, length in ((119, 1), (120, 4), (121, 4), (124, 2), (125, 2))
)
_OUTPUT = struct.Struct("!HHIH6x")  # type, length, port, length for a controller
_METER_COMMANDS = {Op.ADD: 0, Op.REPLACE: 1, Op.DELETE: 2}
_METER = struct.Struct("!HHI")  # command, flags, number
_METER_FLAGS = 1 << 1 | 1 << 2 | 1 << 3  # packets a second, burst, statistics
_BAND = struct.Struct("!HHII4x")  # type, length, rate, burst
_BAND_DROP = 1
_METER_DESC_REQUEST = struct.Struct("!I4x")  # number
_METER_DESCRIBED = struct.Struct("!HHI")  # length, flags, number; its bands follow
_PORT_TABLE = 0xFFFFFFF9  # the first table of flows


@dataclass(frozen=True, slots=True)
class Message:
    """A message: type, transaction number, and the bytes after the header."""

    kind: int
    xid: int
    body: bytes


def message(kind: int, body: bytes = b"", xid: int = 0) -> bytes:
    """Encode a message."""
    return _HEADER.pack(_VERSION, kind, _HEADER.size + len(body), xid) + body


def packet_out(in_port: int, frame: bytes, ports: Sequence[int] = (_PORT_TABLE,)) -> bytes:
    """Make the message that sends a frame out by ports; default: through the flows, from `in_port`."""
    match = _IN_PORT.pack(1, 12, _OXM_IN_PORT, in_port)
    outputs = b"".join(_OUTPUT.pack(0, _OUTPUT.size, port, 0) for port in ports)
    return message(PACKET_OUT, _PACKET_OUT.pack(_NO_BUFFER, len(outputs)) + match + outputs + frame)


def packet_in(report: Message) -> tuple[int, bytes]:
    """Parse a packet that a flow sent to the agent: input port and frame. Raises OSError if it is malformed."""
    fields, frame = _packet_fields(report)
    if _OXM_IN_PORT not in fields:
        raise OSError("a packet without a port")
    return int.from_bytes(fields[_OXM_IN_PORT]), frame


def packet_connection(report: Message) -> OriginalTuple | None:
    """Return the IPv4 connection of a packet that a flow sent to the agent; None if the packet is not tracked.

    Raises OSError if the message is malformed.
    """
    fields, _ = _packet_fields(report)
    if any(header not in fields for header in _CONNECTION_FIELDS):
        return None
    values = (int.from_bytes(fields[header]) for header in _CONNECTION_FIELDS)
    protocol, source, destination, source_port, destination_port = values
    return OriginalTuple(protocol, IPv4Address(source), source_port, IPv4Address(destination), destination_port)


def _packet_fields(report: Message) -> tuple[dict[int, bytes], bytes]:
    """Return the fields of a packet's match by header, and the frame."""
    body = report.body
    try:
        *_, length = _PACKET_IN.unpack_from(body)
        at, end = _PACKET_IN.size, _PACKET_IN.size - 4 + length
        fields: dict[int, bytes] = {}
        while at < end:
            (header,) = _OXM.unpack_from(body, at)
            at += _OXM.size
            fields[header] = body[at : at + (header & 0xFF)]
            at += header & 0xFF
    except struct.error:
        raise OSError("a malformed packet") from None
    # The match is padded to 8 bytes, and two more bytes align the frame's content.
    return fields, body[_PACKET_IN.size - 4 + (length + 7) // 8 * 8 + 2 :]


def meter_message(step: Step, xid: int) -> bytes:
    """Make the message of a step on a meter that drops packets above its rate; bundles cannot contain it."""
    meter = step.resource
    assert isinstance(meter, MeterEntry)
    band = b"" if step.new is None else _BAND.pack(_BAND_DROP, _BAND.size, meter.rate, meter.burst)
    return message(METER_MOD, _METER.pack(_METER_COMMANDS[step.op], _METER_FLAGS, meter.meter_id) + band, xid)


def meters_request() -> bytes:
    """Make the message that requests all meters."""
    return message(MULTIPART_REQUEST, _MULTIPART.pack(_METER_DESC, 0) + _METER_DESC_REQUEST.pack(_ANY))


def meters(reply: Message) -> Iterator[MeterEntry]:
    """Yield the meters of an answer to `meters_request`. One that the agent would not create gets rate 0.

    Raises OSError if it is malformed.
    """
    at = _MULTIPART.size
    try:
        while at < len(reply.body):
            length, flags, number = _METER_DESCRIBED.unpack_from(reply.body, at)
            bands = reply.body[at + _METER_DESCRIBED.size : at + max(length, _METER_DESCRIBED.size)]
            kind, _, rate, burst = _BAND.unpack(bands) if len(bands) == _BAND.size else (0, 0, 0, 0)
            if kind != _BAND_DROP or flags != _METER_FLAGS:
                rate = burst = 0
            yield MeterEntry(meter_id=number, rate=rate, burst=burst)
            at += max(length, _METER_DESCRIBED.size)
    except struct.error:
        raise OSError("a meter without its bands") from None


def count_request(table: int, cookie: int, xid: int) -> bytes:
    """Make the message that requests the packets of the flows with a cookie in a table."""
    request = _AGGREGATE_REQUEST.pack(table, _ANY, _ANY, cookie, _EVERY_BIT, 1, 4)
    return message(MULTIPART_REQUEST, _MULTIPART.pack(_AGGREGATE, 0) + request, xid)


def packet_count(reply: Message) -> int:
    """Parse the answer to `count_request`. Raises OSError if it is malformed."""
    body = reply.body
    try:
        at, (_, length) = _MULTIPART.size + _STATISTICS.size, _STATISTICS.unpack_from(body, _MULTIPART.size)
        while at < _MULTIPART.size + length:
            (header,) = _OXM.unpack_from(body, at)
            at += _OXM.size
            if header == _OXS_PACKETS:
                return int.from_bytes(body[at : at + 8])
            at += header & 0xFF
    except struct.error:
        pass
    raise OSError("statistics without a number of packets")


def subscribe() -> bytes:
    """Make the messages that request reports of all changes of flows and groups, and packets to the agent."""
    reasons = {_FORWARD_TO_MASTER: _GROUP_MOD, _PACKET_TO_MASTER: _BY_ACTION}
    properties = (_PROPERTY.pack(kind, _PROPERTY.size, reasons.get(kind, 0)) for kind in range(_ASYNC_PROPERTIES))
    kinds = _MONITOR_ADD | _MONITOR_REMOVED | _MONITOR_MODIFY
    monitor = _MONITOR.pack(1, _ANY, _ANY, kinds, _ALL_TABLES, 0, 1, 4)  # match: type OXM, length without padding
    return (
        message(SET_ASYNC, b"".join(properties))
        + message(SET_CONFIG, struct.pack("!HH", _FIRST_FRAGMENTS_HAVE_PORTS, 1))
        + message(MULTIPART_REQUEST, _MULTIPART.pack(_FLOW_MONITOR, 0) + monitor)
    )


def flow_updates(reply: Message) -> Iterator[tuple[int, int]]:
    """Yield a multipart reply's events with the flow's cookie (0: of no flow). Raises OSError if malformed."""
    kind, _ = _MULTIPART.unpack_from(reply.body)
    at = _MULTIPART.size
    while kind == _FLOW_MONITOR and at < len(reply.body):
        size, event = _UPDATE.unpack_from(reply.body, at)
        if size < _UPDATE.size:
            raise OSError("a flow update without a length")
        yield event, _COOKIE.unpack_from(reply.body, at)[0] if event in (ADDED, REMOVED, MODIFIED) else 0
        at += size


class OpenFlowConnection(socket.socket):
    """A connection to the management socket at `path`, after the hello. OSError when it has ended."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.settimeout(TIMEOUT)
        try:
            self.connect(path)
            self.sendall(message(HELLO))
            if self.receive().kind != HELLO:
                raise OSError("no OpenFlow switch")
        except OSError:
            self.close()
            raise

    def receive(self) -> Message:
        """Wait for the next message; echo requests are answered and skipped."""
        while True:
            _, kind, length, xid = _HEADER.unpack(self._exactly(_HEADER.size))
            body = self._exactly(max(0, length - _HEADER.size))
            if kind != ECHO_REQUEST:
                return Message(kind, xid, body)
            self.sendall(message(ECHO_REPLY, body, xid))

    def request(self, requests: Sequence[bytes]) -> list[Message]:
        """Send messages and wait until all were processed; return the answers, errors among them."""
        answers = []
        for at in range(0, len(requests), BATCH):
            self.sendall(b"".join(requests[at : at + BATCH]) + message(BARRIER_REQUEST))
            while (answer := self.receive()).kind != BARRIER_REPLY:
                answers.append(answer)
        return answers

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.recv(min(size, 65536))
            if not part:
                raise OSError("connection ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
