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


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which no process listens, and that this process has not given before.

    Processes that run side by side (pytest's workers) begin at places of their own. Raises OSError without a port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in itertools.islice(_tried, _COUNT):
        port = _FIRST + (os.getpid() * 100 + number) % _COUNT
        with contextlib.suppress(OSError), socket.create_server((host, port), family=family):
            return port
    raise OSError(f"{host}: no TCP port from {_FIRST} to {_FIRST + _COUNT - 1} is free")
