"""Options of the embedded API server: ranges of ClusterIPs, a file that keeps objects, tokens."""

from __future__ import annotations

import http.client
import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
SERVICES = "/api/v1/namespaces/default/services"
CIDR = IPv4Network("10.96.0.0/24")


def call(api: ApiServer, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    """Make one request; return status and JSON."""
    connection = http.client.HTTPConnection(api.address, timeout=10)
    try:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def test_a_range_that_is_full() -> None:
    """When every address is given a create fails; one that is given back is given again."""
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/30")) as api:
        assert call(api, "POST", SERVICES, service("a"))[1]["spec"]["clusterIP"] == "10.96.0.2"  # .1 is the API's
        code, status = call(api, "POST", SERVICES, service("b"))
        assert (code, status["reason"]) == (500, "InternalError")
        call(api, "DELETE", f"{SERVICES}/a")
        assert call(api, "POST", SERVICES, service("b"))[1]["spec"]["clusterIP"] == "10.96.0.2"


def test_tokens_and_addresses_outlive_a_restart(tmp_path: Path) -> None:
    """With a data file a new server knows the tokens that the old one gave, and which addresses are taken."""
    file = tmp_path / "data.json"
    options: dict[str, Any] = {"data": file, "tokens": frozenset({"root"}), "service_cidr": CIDR}
    with ApiServer(**options) as api:
        call(api, "POST", ACCOUNTS, {"metadata": {"name": "a"}}, "root")
        token = api.accounts.issue("default", "a")
        cluster_ip = call(api, "POST", SERVICES, service("a"), "root")[1]["spec"]["clusterIP"]
    with ApiServer(**options) as api:
        assert call(api, "GET", ACCOUNTS, token=token)[0] == 200
        for wrong_token in (f"{token}0", f"{token}\xfc"):
            assert call(api, "GET", ACCOUNTS, token=wrong_token)[0] == 401
        assert call(api, "POST", SERVICES, service("b", clusterIP=cluster_ip), "root")[0] == 422


def test_faults_are_the_administrators_business() -> None:
    """Only an administrator reaches the admin endpoint."""
    with ApiServer(tokens=frozenset({"root"})) as api:
        assert call(api, "GET", "/_admin/faults")[0] == 401
        assert call(api, "GET", "/_admin/faults", token="root")[0] == 200
