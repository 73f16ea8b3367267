"""What only the embedded API server has: options of old servers, tokens that end, warnings of what it lacks."""

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


def call(api: ApiServer, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any, str]:
    """Make one request; return status, JSON, and the Warning header."""
    connection = http.client.HTTPConnection(api.address, timeout=10)
    try:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.getheader("Warning") or ""
    finally:
        connection.close()


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def test_an_old_server_tells_its_range_in_an_error() -> None:
    """Before 1.33 there are no ServiceCIDR objects; the error for a wrong address tells the range instead."""
    with ApiServer(service_cidr=CIDR, legacy_services=True) as api:
        assert call(api, "GET", "/apis/networking.k8s.io/v1/servicecidrs")[1]["items"] == []
        code, status, _ = call(api, "POST", SERVICES, service("a", clusterIP="0.0.0.0"))
        assert code == 422
        assert "The range of valid IPs is 10.96.0.0/24" in status["message"]


def test_a_range_that_is_full_and_one_that_is_added() -> None:
    """When every address is given a create fails; another ServiceCIDR helps."""
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/30")) as api:
        assert call(api, "POST", SERVICES, service("a"))[1]["spec"]["clusterIP"] == "10.96.0.2"  # .1 is the API's
        code, status, _ = call(api, "POST", SERVICES, service("b"))
        assert (code, status["reason"]) == (500, "InternalError")
        more = {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}}
        assert call(api, "POST", "/apis/networking.k8s.io/v1/servicecidrs", more)[0] == 201
        assert call(api, "POST", SERVICES, service("b"))[1]["spec"]["clusterIP"].startswith("10.97.0.")


def test_a_token_ends() -> None:
    """A token that has expired is nobody's, one that has not is its account's."""
    with ApiServer(rbac=True, tokens=frozenset({"root"})) as api:
        call(api, "POST", ACCOUNTS, {"metadata": {"name": "a"}}, "root")
        good, _ = api.accounts.issue("default", "a", 60)
        old, _ = api.accounts.issue("default", "a", -1)
        assert call(api, "GET", ACCOUNTS, token=good)[0] == 403
        assert call(api, "GET", ACCOUNTS, token=old)[0] == 401
        forged = good.rpartition(".")[0] + "." + old.rpartition(".")[2]
        assert call(api, "GET", ACCOUNTS, token=forged)[0] == 401


def test_tokens_and_addresses_outlive_a_restart(tmp_path: Path) -> None:
    """With a data file a new server knows the tokens that the old one gave, and which addresses are taken."""
    file = tmp_path / "data.json"
    options: dict[str, Any] = {"data": file, "rbac": True, "tokens": frozenset({"root"}), "service_cidr": CIDR}
    with ApiServer(**options) as api:
        call(api, "POST", ACCOUNTS, {"metadata": {"name": "a"}}, "root")
        token, _ = api.accounts.issue("default", "a", 600)
        given = call(api, "POST", SERVICES, service("a"), "root")[1]["spec"]["clusterIP"]
    with ApiServer(**options) as api:
        assert call(api, "GET", ACCOUNTS, token=token)[0] == 403  # known, but without rights
        assert call(api, "POST", SERVICES, service("b", clusterIP=given), "root")[0] == 422


def test_faults_are_the_administrators_business() -> None:
    """With RBAC on, nobody else can reach the admin endpoint."""
    with ApiServer(rbac=True, tokens=frozenset({"root"})) as api:
        assert call(api, "GET", "/_admin/faults")[0] == 403
        assert call(api, "GET", "/_admin/faults", token="root")[0] == 200


def test_what_is_not_enforced_is_told() -> None:
    """Storing an admission policy is answered with a warning; a webhook with CEL conditions is refused."""
    base = "/apis/admissionregistration.k8s.io/v1"
    with ApiServer() as api:
        _, _, warning = call(
            api, "POST", f"{base}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": {}}
        )
        assert "does not enforce it" in warning
        hook: dict[str, Any] = {
            "name": "a.b.c",
            "matchConditions": [{"name": "x", "expression": "true"}],
            "sideEffects": "None",
        }
        hook["admissionReviewVersions"] = ["v1"]
        body = {"metadata": {"name": "h"}, "webhooks": [hook]}
        code, status, _ = call(api, "POST", f"{base}/validatingwebhookconfigurations", body)
        assert code == 422
        assert "matchConditions" in status["message"]


def test_an_apply_may_be_yaml() -> None:
    """The body of an apply is YAML, in block or in flow style; what is neither is refused."""
    with ApiServer() as api:
        bodies = {"a": "apiVersion: v1\nkind: ConfigMap\ndata: {k: v}\n", "b": "{apiVersion: v1, kind: ConfigMap}"}
        for name, text in {**bodies, "c": "{apiVersion: [}"}.items():
            connection = http.client.HTTPConnection(api.address, timeout=10)
            path = f"/api/v1/namespaces/default/configmaps/{name}?fieldManager=tests"
            connection.request("PATCH", path, text.encode(), {"Content-Type": "application/apply-patch+yaml"})
            assert connection.getresponse().status == (201 if name in bodies else 400)
            connection.close()
