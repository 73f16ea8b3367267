"""TCP ports of the loopback for servers that tests and the lab start on this machine.

They lie below those that Linux gives to clients (ip(7), ip_local_port_range): a port that the kernel has chosen
(bind to 0) may be a client's when the server binds it, or while the server is down between two runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_FIRST, _COUNT = 20000, 10000
_tried = itertools.count()
_claims: list[int] = []  # open descriptors


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which no process listens, and that no running process was given. Raises OSError without.

    The process claims it with a socket of that name (unix(7), abstract: of this network namespace, gone with the
    process). So no other process is given the port before the server binds it, or between two of its runs.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in itertools.islice(_tried, _COUNT):
        port = _FIRST + (os.getpid() * 100 + number) % _COUNT
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as claim:
            claim.bind(f"\0mcagent-port-{port}")
            with socket.create_server((host, port), family=family):
                _claims.append(claim.detach())
                return port
    raise OSError(f"{host}: no TCP port from {_FIRST} to {_FIRST + _COUNT - 1} is free")
