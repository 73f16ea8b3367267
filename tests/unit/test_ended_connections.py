"""Deletion of connections whose reason is gone: each once, whatever fails."""

from __future__ import annotations

from ipaddress import IPv4Address

from devtools.waiting import wait_until
from mcagent.agent.ended_connections import MOST, EndedConnections
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.errors import BackendError


def connection(port: int) -> OriginalTuple:
    """Return a connection of a client's port."""
    return OriginalTuple(17, IPv4Address("10.1.1.2"), port, IPv4Address("10.102.0.80"), 80)


def test_each_connection_is_deleted_once_and_no_more_wait_than_fit() -> None:
    """Many packets of one connection may arrive before it is deleted. One that is gone hinders no other."""
    deleted: list[int] = []

    def delete(ended: OriginalTuple) -> None:
        deleted.append(ended.source_port)
        if ended.source_port == 1:
            raise BackendError("openflow", "dpctl/flush-conntrack", "socket", "No such file or directory")

    ended = EndedConnections(delete)
    for number in [*range(MOST + 5), 0, 1, 2]:
        ended.add(connection(number))
    ended.start()
    try:
        wait_until(lambda: len(deleted) == MOST, "all that fit")
        ended.add(connection(MOST + 7))
        wait_until(lambda: deleted[-1] == MOST + 7, "a later one")
    finally:
        ended.stop()
    assert deleted == [*range(MOST), MOST + 7]
