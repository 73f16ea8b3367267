"""Reads columns that are not part of the replica from ovsdb-server, on a new connection."""

from __future__ import annotations

import codecs
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from mcagent.dataplane.ovsdb.json_stream import StreamParser
from mcagent.model.errors import BackendError

TIMEOUT = 5.0  # seconds for each part of the answer


def select(remote: str, operation: str, *selects: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the rows of each select operation (RFC 7047, 5.2.2) of one transaction at "unix:PATH".

    `operation` is for errors. Raises BackendError when the server cannot be reached or does not answer.
    """
    params: Sequence[Any] = ["Open_vSwitch", *selects]
    request = {"id": 0, "method": "transact", "params": params}
    answer, decoder = StreamParser(), codecs.getincrementaldecoder("utf-8")()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(remote.removeprefix("unix:"))
            connection.sendall(json.dumps(request).encode())
            while not answer.is_done():
                part = connection.recv(1 << 20)
                if not part:
                    raise OSError("connection closed")
                answer.feed(decoder.decode(part))
        return [list(result["rows"]) for result in answer.finish()["result"]]
    except OSError as error:
        raise BackendError("ovsdb", operation, remote, error.strerror or str(error)) from None
    except (KeyError, TypeError, IndexError, UnicodeError):
        raise BackendError("ovsdb", operation, remote, "a malformed answer") from None
