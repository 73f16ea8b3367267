"""Gives packets to our bridge as if they had come in by a port (OpenFlow packet-out). Owns its connections."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from mcagent.dataplane.openflow import messages as wire
from mcagent.model.errors import BackendError

TIMEOUT = 5.0  # seconds for each answer
BATCH = 128  # packets; ovs-vswitchd does other things in between


def send(path: str, in_port: int, frames: Sequence[bytes]) -> None:
    """Let the flows of the bridge at the management socket `path` have these frames. Raises BackendError.

    All frames were taken in when this returns; those that Open vSwitch refuses are told of by the error.
    """
    refused = 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(path)
            wire.greet(connection)
            for at in range(0, len(frames), BATCH):
                some = (wire.packet_out(in_port, frame) for frame in frames[at : at + BATCH])
                connection.sendall(b"".join(some) + wire.barrier_request())
                while (answer := wire.receive(connection)).kind != wire.BARRIER_REPLY:
                    if answer.kind == wire.ECHO_REQUEST:
                        connection.sendall(wire.echo_reply(answer))
                    refused += answer.kind == wire.ERROR
    except OSError as error:
        raise BackendError("openflow", "send packets", path, str(error)) from None
    if refused:
        raise BackendError("openflow", "send packets", path, f"{refused} of {len(frames)} were refused")
