"""Which leader this cluster has joined, and with which credentials: from ClusterSet and Secret. Pure.

A ClusterSet that names no server is that of a leader, and no membership. Its name is the ClusterSet's ID.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.names import is_cluster_id, is_label
from mcagent.model.api.kubernetes import SecretData
from mcagent.model.api.multicluster import ClusterClaim, ClusterSet
from mcagent.model.errors import InputError

MAX_TOKEN = 64 * 1024
MAX_CA = 256 * 1024
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a ClusterSet says of its leader."""

    cluster_set: str
    uid: str  # of the ClusterSet: one that is made again is another membership
    cluster_id: str
    leader_cluster_id: str
    namespace: str  # on the leader
    server: str
    secret: str
    leaving: bool = False  # the ClusterSet is being deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderCredentials:
    """What a Secret holds. Never shown."""

    ca: bytes
    token: str

    def __repr__(self) -> str:
        """Return nothing of them."""
        return "Credentials(...)"


def membership(cluster_sets: Sequence[ClusterSet], claims: Iterable[ClusterClaim] = ()) -> Membership | None:
    """Return the membership of the oldest ClusterSet that names a server; None where there is none.

    Raises InputError for a ClusterSet that cannot be used; the text says what would be right.
    """
    candidates = [cluster_set for cluster_set in cluster_sets if cluster_set.leader_server]
    candidates += [cluster_set for cluster_set in cluster_sets if cluster_set.is_faulty("spec.leaders")]
    if not candidates:
        return None
    cluster_set = min(candidates, key=lambda cluster_set: cluster_set.age)
    cluster_set.check("spec.leaders")
    spec, leader = cluster_set.spec, cluster_set.spec.leaders[0]
    subject = cluster_set.subject
    cluster_id = spec.cluster_id or claimed(claims)
    if not is_cluster_id(cluster_id):
        raise InputError(
            subject,
            "spec.clusterID",
            "must be this cluster's ID, a DNS name of at most 63 characters",
            code="InvalidName",
        )
    if not is_label(spec.namespace):
        raise InputError(subject, "spec.namespace", "must be the namespace of the ClusterSet on the leader")
    if not is_cluster_id(leader.cluster_id):
        raise InputError(subject, "spec.leaders[0].clusterID", "must be the leader's cluster ID, a DNS name")
    if not leader.secret or "/" in leader.secret:
        raise InputError(subject, "spec.leaders[0].secret", "must name a Secret of this namespace")
    return Membership(
        cluster_set=cluster_set.name,
        uid=cluster_set.metadata.uid,
        cluster_id=cluster_id,
        leader_cluster_id=leader.cluster_id,
        namespace=spec.namespace,
        server=_server(subject, leader.server),
        secret=leader.secret,
        leaving=cluster_set.is_deleting,
    )


def credentials(subject: str, secret: SecretData | None) -> LeaderCredentials:
    """Return what a Secret holds. Raises InputError, whose text never holds a value of it."""
    if secret is None:
        raise InputError(subject, "", "does not exist: it must hold ca.crt and token", code="Missing")
    ca = _decoded(subject, secret.data, "ca.crt", MAX_CA)
    token = _decoded(subject, secret.data, "token", MAX_TOKEN)
    if b"-----BEGIN CERTIFICATE-----" not in ca:
        raise InputError(subject, "data[ca.crt]", "must be a PEM certificate")
    text = token.decode("ascii", "replace").strip()
    if not text or not all("!" <= char <= "~" for char in text):
        raise InputError(subject, "data[token]", "must be a bearer token")
    return LeaderCredentials(ca=ca, token=text)


def _server(subject: str, server: str) -> str:
    wrong = InputError(subject, "spec.leaders[0].server", 'must be the URL of an API server: "https://host:port"')
    if len(server) > 2048 or not all("!" <= char <= "~" for char in server):
        raise wrong
    try:
        parts = urlsplit(server)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or parts.username or parts.password or parts.query or parts.fragment:
        raise wrong
    # A token must not go over a wire in the clear.
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise wrong
    return server.rstrip("/")


def _decoded(subject: str, data: Mapping[str, str], key: str, most: int) -> bytes:
    value, path = data.get(key), f"data[{key}]"
    if not value:
        raise InputError(subject, path, "is missing", code="Missing")
    if len(value) > 2 * most:
        raise InputError(subject, path, f"is longer than {most} bytes")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InputError(subject, path, "is not base64") from None
