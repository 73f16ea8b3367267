"""Tokens of ServiceAccounts, as a leader hands them to its members."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from devtools.waiting import wait_until
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from tests.kube.access import account, token_of
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.apiserver


@pytest.fixture
def member(cluster: Cluster) -> Iterator[Client]:
    """Give a client that is known as the ServiceAccount `member`, which has no rights yet."""
    account(cluster, "member")
    with closing(cluster.server.as_token(token_of(cluster, "member"))) as client:
        yield client


def test_bad_tokens_are_refused(cluster: Cluster) -> None:
    """A token of no account is 401 Unauthorized."""
    with closing(cluster.server.as_token("nonsense")) as client:
        assert cluster.refused("GET", cluster.gateways, client=client).code == 401


@pytest.mark.real_only  # the embedded server knows no anonymous user
def test_no_token_is_the_anonymous_user(cluster: Cluster) -> None:
    """It may do nothing."""
    with closing(cluster.server.as_token("")) as client:
        assert cluster.refused("GET", cluster.gateways, client=client).code == 403


def test_a_token_ends_with_its_account(cluster: Cluster, member: Client) -> None:
    """The token of a ServiceAccount that was deleted is refused, also when there is a new one of that name."""
    cluster.client.request("DELETE", cluster.path("serviceaccounts", "member"))
    account(cluster, "member")

    def refused() -> bool:
        with pytest.raises(ApiRefusalError) as caught:
            member.request("GET", cluster.gateways)
        return caught.value.code == 401

    wait_until(refused, "the token to be refused", timeout=20)


@pytest.mark.real_only
def test_a_token_names_its_account(cluster: Cluster) -> None:
    """The claims of a TokenRequest: who, where, until when; less than ten minutes cannot be asked for."""
    uid = account(cluster, "a")["metadata"]["uid"]
    body = token_of(cluster, "a").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["sub"] == f"system:serviceaccount:{cluster.namespace}:a"
    assert claims["kubernetes.io"] == {"namespace": cluster.namespace, "serviceaccount": {"name": "a", "uid": uid}}
    assert claims["exp"] - claims["iat"] == 3600
    with pytest.raises(ApiRefusalError, match="may not specify a duration less than 10 minutes"):
        token_of(cluster, "a", 10)
    with pytest.raises(ApiRefusalError, match='serviceaccounts "none" not found'):
        token_of(cluster, "none")


@pytest.mark.real_only
@pytest.mark.controllers
def test_a_token_is_written_into_a_secret(cluster: Cluster) -> None:
    """A Secret of type service-account-token is filled by the token controller; the token works until it goes."""
    created = account(cluster, "member")
    annotations = {"kubernetes.io/service-account.name": "member"}
    kind = "kubernetes.io/service-account-token"
    for name in ("t", "unused"):
        cluster.create(cluster.path("secrets"), name, type=kind, metadata={"annotations": annotations})

    def stored() -> dict[str, Any]:
        items = cluster.client.request("GET", cluster.path("secrets"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    wait_until(
        lambda: all("token" in (secret.get("data") or {}) for secret in stored().values()), "tokens", timeout=20
    )
    secret, unused = stored()["t"], stored()["unused"]
    assert secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"] == created["metadata"]["uid"]
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["namespace"] == cluster.namespace
    assert data["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    with closing(cluster.server.as_token(data["token"])) as client:
        assert cluster.refused("GET", cluster.gateways, client=client).code == 403
    # Of a token that was used a real server believes for ten seconds that it is good.
    cluster.client.request("DELETE", cluster.path("secrets", "unused"))
    with closing(cluster.server.as_token(base64.b64decode(unused["data"]["token"]).decode())) as client:

        def refused() -> bool:
            return cluster.refused("GET", cluster.gateways, client=client).code == 401

        wait_until(refused, "the token of a Secret that is gone to be refused", timeout=20)


@pytest.mark.real_only
@pytest.mark.controllers
def test_a_token_secret_goes_with_its_account(cluster: Cluster) -> None:
    """The Secret of an account that is deleted, or of one that never was, is deleted."""
    kind = "kubernetes.io/service-account-token"
    account(cluster, "member")
    for name, owner in (("t", "member"), ("orphan", "none")):
        annotations = {"kubernetes.io/service-account.name": owner}
        cluster.create(cluster.path("secrets"), name, type=kind, metadata={"annotations": annotations})

    def there() -> list[str]:
        items = cluster.client.request("GET", cluster.path("secrets"))["items"]
        return [item["metadata"]["name"] for item in items]

    wait_until(lambda: there() == ["t"], "the Secret without an account to go", timeout=20)
    cluster.client.request("DELETE", cluster.path("serviceaccounts", "member"))
    wait_until(lambda: there() == [], "the Secret to go with its account", timeout=20)
