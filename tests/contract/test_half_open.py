"""Connections to an API server whose packets are lost, as after a load balancer has lost its state."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from devtools.apiserver import ApiServer
from devtools.nodes import netns
from mcagent.kube.client import Client
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

pytestmark = pytest.mark.contract
DROP = "table ip lost { chain out { type filter hook output priority 0; tcp sport PORT drop; }; }"


def test_a_watch_notices_within_half_a_minute_that_its_server_is_gone(
    fresh_namespace: str, tmp_path: Path
) -> None:
    """Nothing closes the connection, and no packet passes: TCP's own probes tell, long before the watch would."""
    netns.ip(fresh_namespace, "link", "set", "lo", "up")
    server = netns.call(fresh_namespace, ApiServer().__enter__)
    try:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        client = Client(str(tmp_path / "kubeconfig"))
        path, query = object_path(Kind.NODE, ""), {"watch": "true", "allowWatchBookmarks": "true"}
        stream = netns.call(fresh_namespace, lambda: client.watch(path, query, inactivity=120.0))
        began = time.monotonic()
        netns.execute(fresh_namespace, ["nft", DROP.replace("PORT", server.address.rpartition(":")[2])])
        with stream, pytest.raises(SourceError, match="no answer in time"):
            list(stream.lines())
        assert 20 < time.monotonic() - began < 40
    finally:
        server.__exit__(None, None, None)
