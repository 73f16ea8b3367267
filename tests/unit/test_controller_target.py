"""Which leader a ClusterSet names, with which credentials, and how a wrong one is refused."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.machinery.connection.membership import LeaderCredentials, Membership
from mcagent.controller.machinery.connection.membership import credentials as read_credentials
from mcagent.controller.machinery.connection.membership import membership as read_membership
from mcagent.model.api.kubernetes import SecretData
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as
from tests.worlds.memory_objects import typed

PEM = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
LEADER = {"clusterID": "north", "server": "https://192.0.2.1:6443", "secret": "token"}


def cluster_set(name: str = "blue", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    """Return a member's ClusterSet."""
    meta = {"name": name, "namespace": "kube-system", "uid": name, "creationTimestamp": created}
    return {"metadata": meta, "spec": {"clusterID": "east", "namespace": "mc", "leaders": [LEADER], **spec}}


def membership(cluster_sets: list[Any], claims: Sequence[Any] = ()) -> Membership | None:
    """Return the membership that objects say."""
    typed_sets = [typed(cluster_set, Kind.CLUSTER_SET) for cluster_set in cluster_sets]
    return read_membership(typed_sets, [typed(claim, Kind.CLUSTER_CLAIM) for claim in claims])


def credentials(subject: str, secret: Any) -> LeaderCredentials:
    """Return what a Secret holds."""
    return read_credentials(subject, None if secret is None else read_as(SecretData, secret))


def secret(**data: bytes) -> dict[str, Any]:
    """Return a Secret; a_b stands for the key "a.b"."""
    encoded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    return {"metadata": {"name": "token"}, "data": encoded}


def test_the_oldest_cluster_set_with_a_server_counts() -> None:
    """A leader's own ClusterSet is no membership; of two members' the older is it."""
    leaders = cluster_set("led", "2020-01-01T00:00:00Z", leaders=[{"clusterID": "north"}])
    younger, older = cluster_set("b", "2026-02-01T00:00:00Z"), cluster_set("c", "2026-01-01T00:00:00Z")
    decided_membership = membership([leaders, younger, older])
    assert decided_membership is not None
    assert (decided_membership.cluster_set, decided_membership.cluster_id, decided_membership.namespace) == (
        "c",
        "east",
        "mc",
    )
    assert membership([leaders]) is None
    assert membership([]) is None


@pytest.mark.parametrize(
    "claim",
    [
        {"metadata": {"name": "id.k8s.io"}, "value": "old-east"},
        {"metadata": {"name": "east-membercluster-id"}, "name": "id.k8s.io", "value": "old-east"},  # of v1alpha1
    ],
)
def test_an_id_from_before_the_field_comes_from_its_claim(claim: dict[str, Any]) -> None:
    """ClusterSets of v1alpha1 left the cluster's ID to a ClusterClaim."""
    decided_membership = membership([cluster_set(clusterID="")], [claim])
    assert decided_membership is not None
    assert decided_membership.cluster_id == "old-east"
    with pytest.raises(InputError, match="clusterID") as info:
        membership([cluster_set(clusterID="")])
    assert info.value.code == "InvalidName"


@pytest.mark.parametrize(
    "server",
    [
        "http://192.0.2.1",  # the token would be readable on the wire
        "ftp://192.0.2.1",
        "192.0.2.1:6443",
        "https://user:word@192.0.2.1",
        "https://192.0.2.1/?x=1",
        "https://192.0.2.1:99999",
        "https://",
        "https://exa mple",
        "https://host\r\nX: y",
        ["https://192.0.2.1"],
    ],
)
def test_servers_that_are_none_are_refused(server: object) -> None:
    """Only an https URL without user, query or control characters is asked; http only on the loopback."""
    with pytest.raises(InputError, match=r"leaders\[0\]\.server"):
        membership([cluster_set(leaders=[{**LEADER, "server": server}])])
    assert membership([cluster_set(leaders=[{**LEADER, "server": "http://127.0.0.1:8080"}])]) is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [("clusterID", "East"), ("clusterID", "e" * 64), ("clusterID", 5), ("namespace", ""), ("namespace", "a/b")],
)
def test_names_that_are_none_are_refused(field: str, value: object) -> None:
    """The error names the field."""
    changed = cluster_set()
    changed["spec"][field] = value
    with pytest.raises(InputError, match=f"spec.{field}"):
        membership([changed])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(spec=_JSON, leaders=_JSON, data=_JSON)
def test_no_object_makes_anything_but_a_value_or_a_refusal(spec: Any, leaders: Any, data: Any) -> None:
    """Whatever stands in a ClusterSet or Secret, nothing else is raised."""
    for body in (spec, {**cluster_set()["spec"], "leaders": leaders}, {"leaders": [leaders]}):
        with suppress(InputError):
            assert membership([{"metadata": {"name": "x"}, "spec": body}]) is None or leaders
    with suppress(InputError):
        assert credentials("Secret x", {"metadata": {"name": "x"}, "data": data}).token


def test_credentials_come_from_both_keys() -> None:
    """ca.crt and token are needed, and are never shown."""
    result = credentials("Secret x", secret(ca_crt=PEM, token=b"abc.def\n"))
    assert (result.ca, result.token) == (PEM, "abc.def")
    assert "abc" not in repr(result)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        secret(ca_crt=PEM),
        secret(token=b"abc"),
        secret(ca_crt=b"none", token=b"abc"),
        secret(ca_crt=PEM, token=b"a b"),
        secret(ca_crt=PEM, token=b"a\r\nX: y"),
        secret(ca_crt=PEM, token=b"\xff\xfe"),
        secret(ca_crt=PEM, token=b"a" * 200_000),
        {"metadata": {"name": "x"}, "data": {"ca.crt": "***", "token": "***"}},
    ],
)
def test_unusable_secrets_are_refused_without_showing_them(wrong: Any) -> None:
    """The error says which key is wrong, never what is in it."""
    with pytest.raises(InputError) as caught:
        credentials("Secret kube-system/token", wrong)
    assert "Secret kube-system/token" in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_membership_is_what_the_cluster_set_has() -> None:
    """With the ClusterSet's uid, its Secret, and whether it is being deleted; a slash ends no URL."""
    member = cluster_set(leaders=[{**LEADER, "server": "https://north.example:6443/prefix//"}])
    expected = Membership(
        cluster_set="blue",
        uid="blue",
        cluster_id="east",
        leader_cluster_id="north",
        namespace="mc",
        server="https://north.example:6443/prefix",
        secret="token",
    )
    assert membership([member]) == expected
    member["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    ending = membership([member])
    assert ending is not None
    assert ending.leaving
    assert ending != expected


def test_the_id_of_the_field_goes_before_that_of_the_claim() -> None:
    """A ClusterClaim of an upgraded cluster may still have an old one."""
    decided_membership = membership(
        [cluster_set(clusterID="east")], [{"metadata": {"name": "id.k8s.io"}, "value": "old-east"}]
    )
    assert decided_membership is not None
    assert decided_membership.cluster_id == "east"


@pytest.mark.parametrize(
    ("spec", "path", "reason", "code"),
    [
        (
            {"clusterID": "East"},
            "spec.clusterID",
            "must be this cluster's ID, a DNS name of at most 63 characters",
            "InvalidName",
        ),
        (
            {"namespace": "a.b"},
            "spec.namespace",
            "must be the namespace of the ClusterSet on the leader",
            "InvalidValue",
        ),
        (
            {"leaders": [{**LEADER, "clusterID": ""}]},
            "spec.leaders[0].clusterID",
            "must be the leader's cluster ID, a DNS name",
            "InvalidValue",
        ),
        (
            {"leaders": [{**LEADER, "secret": ""}]},
            "spec.leaders[0].secret",
            "must name a Secret of this namespace",
            "InvalidValue",
        ),
        (
            {"leaders": [{**LEADER, "secret": "other/token"}]},
            "spec.leaders[0].secret",
            "must name a Secret of this namespace",
            "InvalidValue",
        ),
        (
            {"leaders": [{**LEADER, "server": "http://north.example"}]},
            "spec.leaders[0].server",
            'must be the URL of an API server: "https://host:port"',
            "InvalidValue",
        ),
    ],
)
def test_a_refusal_says_what_would_be_right(spec: dict[str, Any], path: str, reason: str, code: str) -> None:
    """With the object, the field and a reason that is a word."""
    with pytest.raises(InputError) as info:
        membership([cluster_set(**spec)])
    error = info.value
    assert (error.subject, error.path) == ("ClusterSet kube-system/blue", path)
    assert (error.reason, error.code) == (reason, code)


def test_leaders_of_a_wrong_type_are_refused() -> None:
    """The ClusterSet does not count as one without a leader; another ClusterSet that is older counts."""
    with pytest.raises(InputError, match=r"spec\.leaders"):
        membership([cluster_set(leaders=[{**LEADER, "clusterID": ["north"]}])])
    with pytest.raises(InputError, match=r"spec\.leaders"):
        membership([cluster_set(leaders="north")])
    older = cluster_set("a", "2020-01-01T00:00:00Z")
    assert membership([cluster_set("b", leaders="north"), older]) is not None


@pytest.mark.parametrize(
    ("server", "is_usable"),
    [
        ("https://h" + "/" + "a" * (2048 - 10), True),
        ("https://h" + "/" + "a" * (2048 - 9), False),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://127.0.0.2:1", False),
        ("ftp://localhost", False),
        ("https://north.example#x", False),
        ("https://:word@north.example", False),
        ("https://north.example/\x7f", False),
        ("https://north.example/!~", True),
    ],
)
def test_servers_up_to_a_length_and_on_the_loopback(server: str, is_usable: bool) -> None:
    """At most 2048 printable characters; without TLS only this machine."""
    member = cluster_set(leaders=[{**LEADER, "server": server}])
    if is_usable:
        decided_membership = membership([member])
        assert decided_membership is not None
        assert decided_membership.server == server
    else:
        with pytest.raises(InputError, match="URL of an API server"):
            membership([member])


@pytest.mark.parametrize(
    ("wrong", "path", "reason", "code"),
    [
        (None, "", "does not exist: it must hold ca.crt and token", "Missing"),
        (secret(token=b"abc"), "data[ca.crt]", "is missing", "Missing"),
        (secret(ca_crt=PEM), "data[token]", "is missing", "Missing"),
        (secret(ca_crt=b"none", token=b"abc"), "data[ca.crt]", "must be a PEM certificate", "InvalidValue"),
        (secret(ca_crt=PEM, token=b" \n"), "data[token]", "must be a bearer token", "InvalidValue"),
        (secret(ca_crt=PEM, token=b"a\x7f"), "data[token]", "must be a bearer token", "InvalidValue"),
        (
            {"metadata": {}, "data": {"ca.crt": "*", "token": "YQ=="}},
            "data[ca.crt]",
            "is not base64",
            "InvalidValue",
        ),
        (
            secret(ca_crt=PEM, token=b"a" * 100_000),
            "data[token]",
            "is longer than 65536 bytes",
            "InvalidValue",
        ),
        (
            secret(ca_crt=PEM + b"\n" * 400_000, token=b"abc"),
            "data[ca.crt]",
            "is longer than 262144 bytes",
            "InvalidValue",
        ),
    ],
)
def test_a_refused_secret_says_which_key_is_wrong(wrong: Any, path: str, reason: str, code: str) -> None:
    """And what would be right."""
    with pytest.raises(InputError) as info:
        credentials("Secret kube-system/token", wrong)
    error = info.value
    assert error.subject == "Secret kube-system/token"
    assert (error.path, error.reason, error.code) == (path, reason, code)


def test_a_token_has_printable_characters_and_blanks_around_it_only() -> None:
    """A line end of an editor does no harm, and nor does a comment before the certificate."""
    result = credentials("Secret x", secret(ca_crt=b"# the CA\n" + PEM, token=b" !abc.~ \n"))
    assert (result.ca, result.token) == (b"# the CA\n" + PEM, "!abc.~")
    largest = secret(ca_crt=PEM + b"\n" * (2**18 - len(PEM)), token=b"a" * 2**16)
    assert len(credentials("Secret x", largest).token) == 2**16
