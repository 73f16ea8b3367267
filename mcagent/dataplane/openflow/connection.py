"""One OpenFlow connection to a bridge's management socket: for the watch, for meters and for packets.

Owns the greeting, how messages follow each other on the stream, and the answers to echo requests. Knows nothing of
what the messages mean.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from mcagent.dataplane.openflow import messages
from mcagent.dataplane.openflow.messages import HEADER, Message

TIMEOUT = 5.0  # seconds for each answer
BATCH = 128  # messages; ovs-vswitchd does other things in between


class OpenFlowConnection(socket.socket):
    """A greeted connection to the management socket at `path`. Every method raises OSError when it ended."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.settimeout(TIMEOUT)
        try:
            self.connect(path)
            self.sendall(messages.hello())
            if self.receive().kind != messages.HELLO:
                raise OSError("no OpenFlow switch")
        except OSError:
            self.close()
            raise

    def receive(self) -> Message:
        """Return the next message that is no echo request."""
        while True:
            _, kind, length, xid = HEADER.unpack(self._exactly(HEADER.size))
            message = Message(kind, xid, self._exactly(max(0, length - HEADER.size)))
            if kind != messages.ECHO_REQUEST:
                return message
            self.sendall(messages.echo_reply(message))

    def request(self, requests: Sequence[bytes]) -> list[Message]:
        """Send messages and wait until all were processed; return the errors."""
        errors = []
        for at in range(0, len(requests), BATCH):
            self.sendall(b"".join(requests[at : at + BATCH]) + messages.barrier_request())
            while (answer := self.receive()).kind != messages.BARRIER_REPLY:
                if answer.kind == messages.ERROR:
                    errors.append(answer)
        return errors

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.recv(min(size, 65536))
            if not part:
                raise OSError("connection ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
