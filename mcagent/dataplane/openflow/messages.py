"""The few OpenFlow 1.5 messages that no run of ovs-ofctl sends: watch flows and groups, meters, packet-out. Pure.

Sources: OpenFlow Switch Specification 1.5.1, sections 7.1.1 (header), 7.3.2 (configuration), 7.3.4.5 (meters),
7.3.5.18 (flow monitor), 7.3.6 (packet-out), 7.3.7 (barrier), 7.3.10 (asynchronous messages) and 7.4.6 (request
forward). Open vSwitch forwards requests to connections of its management socket only if they have set a
miss_send_len (ofproto/connmgr.c, ofconn_receives_async_msg).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

VERSION = 6  # OpenFlow 1.5
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, SET_CONFIG = 0, 1, 2, 3, 9
PACKET_OUT, BARRIER_REQUEST, BARRIER_REPLY = 13, 20, 21
MULTIPART_REQUEST, MULTIPART_REPLY, SET_ASYNC, METER_MOD, REQUESTFORWARD = 18, 19, 28, 29, 32

HEADER = struct.Struct("!BBHI")  # version, type, length, transaction number
_MULTIPART = struct.Struct("!HH4x")  # type, flags
_FLOW_MONITOR = 16
_MONITOR = struct.Struct("!IIIHBB HH4x")  # id, out port, out group, flags, table, command; an empty match
_ANY = 0xFFFFFFFF
_ALL_TABLES = 0xFF
_ADDED, _REMOVED, _MODIFIED, _ABBREV, _PAUSED, _RESUMED = range(1, 7)
_MONITOR_ADD, _MONITOR_REMOVED, _MONITOR_MODIFY = 1 << 1, 1 << 2, 1 << 3
_PROPERTY = struct.Struct("!HHI")  # type, length, reasons
_ASYNC_PROPERTIES = 12  # kinds of message, each for slaves (even) and for others (odd)
_FORWARD_TO_MASTER = 11
_GROUP_MOD = 1 << 0
_UPDATE = struct.Struct("!HH")  # length, event
_COOKIE = struct.Struct("!Q")
_COOKIE_AT = 16  # in an update
_PACKET_OUT = struct.Struct("!IH2x")  # buffer, length of actions
_NO_BUFFER = 0xFFFFFFFF
_IN_PORT = struct.Struct("!HHIIxxxx")  # a match: type OXM, its length, the field's header, the port; padding
_OXM_IN_PORT = 0x80000004  # class basic, field 0, 4 bytes
_OUTPUT = struct.Struct("!HHIH6x")  # type, length, port, length for a controller
METER_ADD, METER_MODIFY, METER_DELETE = range(3)
_METER = struct.Struct("!HHI")  # command, flags, number
_METER_FLAGS = 1 << 1 | 1 << 2 | 1 << 3  # packets a second, burst, statistics
_BAND = struct.Struct("!HHII4x")  # type, length, rate, burst
_BAND_DROP = 1
_PORT_TABLE = 0xFFFFFFF9  # the first table of flows


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its type, transaction number and what comes after the header."""

    kind: int
    xid: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """One flow was changed. `lost`: the switch could not report all changes."""

    cookie: int = 0
    removed: bool = False
    lost: bool = False


def _message(kind: int, body: bytes = b"", xid: int = 0) -> bytes:
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def hello() -> bytes:
    """Return the first message."""
    return _message(HELLO)


def echo_request(xid: int) -> bytes:
    """Return a message that is answered when its turn comes."""
    return _message(ECHO_REQUEST, xid=xid)


def echo_reply(request: Message) -> bytes:
    """Return the answer to an echo request."""
    return _message(ECHO_REPLY, request.body, request.xid)


def barrier_request() -> bytes:
    """Return a message that is answered when all before it were processed."""
    return _message(BARRIER_REQUEST)


def packet_out(in_port: int, frame: bytes) -> bytes:
    """Return the message that gives a frame to the flows as if it had come in by a port."""
    match = _IN_PORT.pack(1, 12, _OXM_IN_PORT, in_port)
    output = _OUTPUT.pack(0, _OUTPUT.size, _PORT_TABLE, 0)
    return _message(PACKET_OUT, _PACKET_OUT.pack(_NO_BUFFER, len(output)) + match + output + frame)


def meter_mod(command: int, meter_id: int, rate: int, burst: int, xid: int) -> bytes:
    """Return the message that adds, modifies or deletes a meter that drops what is over its rate."""
    band = b"" if command == METER_DELETE else _BAND.pack(_BAND_DROP, _BAND.size, rate, burst)
    return _message(METER_MOD, _METER.pack(command, _METER_FLAGS, meter_id) + band, xid)


def subscribe() -> bytes:
    """Return the messages that ask for every change of a flow or group from now on, and for nothing else."""
    wanted = {_FORWARD_TO_MASTER: _GROUP_MOD}
    properties = (_PROPERTY.pack(kind, _PROPERTY.size, wanted.get(kind, 0)) for kind in range(_ASYNC_PROPERTIES))
    kinds = _MONITOR_ADD | _MONITOR_REMOVED | _MONITOR_MODIFY
    monitor = _MONITOR.pack(1, _ANY, _ANY, kinds, _ALL_TABLES, 0, 1, 4)  # match: type OXM, length without padding
    return (
        _message(SET_ASYNC, b"".join(properties))
        + _message(SET_CONFIG, struct.pack("!HH", 0, 1))
        + _message(MULTIPART_REQUEST, _MULTIPART.pack(_FLOW_MONITOR, 0) + monitor)
    )


def changes(message: Message) -> Iterator[Change]:
    """Return the changes that a multipart reply reports. Raises OSError if it makes no sense."""
    kind, _ = _MULTIPART.unpack_from(message.body)
    if kind != _FLOW_MONITOR:
        return
    at = _MULTIPART.size
    while at < len(message.body):
        size, event = _UPDATE.unpack_from(message.body, at)
        if size < _UPDATE.size:
            raise OSError("a flow update without a length")
        if event in (_ADDED, _REMOVED, _MODIFIED):
            (cookie,) = _COOKIE.unpack_from(message.body, at + _COOKIE_AT)
            yield Change(cookie, removed=event == _REMOVED)
        elif event in (_PAUSED, _RESUMED):
            yield Change(lost=True)
        at += size
