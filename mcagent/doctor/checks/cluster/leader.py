"""Check `leader`: the leader is connected; the token; its API server's certificate and clock."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from mcagent.api.doctor import CheckFinding
from mcagent.controller.contract.cluster_uid import DUPLICATE
from mcagent.controller.member.leader_token import EXPIRED, LEADER_TOKEN, NOT_RENEWED
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.clock import clock_finding
from mcagent.doctor.examined import TIMEOUT, ExaminedCluster
from mcagent.http.certificates import expiry
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ApiClusterInfoImport, ClusterSet

_RENEW = "renew the certificate of that API server (kubeadm certs renew apiserver)"
CHECK = DoctorCheck(
    name="leader",
    order=240,
    summary="the leader is connected; the token; its API server's certificate and clock",
    causes={
        "LeaderAway": failed(
            "updates from and to other clusters stop; forwarding continues",
            "curl -k {server}/readyz from this cluster; mcagent get clusterset",
        ),
        "LeaderRefusesToken": failed(
            "updates from and to other clusters stop; after a day the leader removes what this cluster exported; "
            "forwarding continues",
            "on the leader: mcagent membertoken rotate NAME -n NAMESPACE -o token.yaml; here: "
            "mcagent clusterset join -n {namespace} --token-secret-file token.yaml (docs/operations.md)",
        ),
        EXPIRED: failed(
            "updates from and to other clusters stop; after a day the leader removes what this cluster exported; "
            "forwarding continues",
            "the commands in the message (docs/operations.md, Tokens of members)",
        ),
        NOT_RENEWED: warning(
            "at its end, updates from and to other clusters stop",
            "what the message names; the controller repeats it every hour (docs/operations.md, Tokens of members)",
        ),
        "NotJoined": warning("the cluster is in no ClusterSet", "mcagent clusterset join --help"),
        "LeaderClockOff": warning(
            "tokens and certificates of one cluster may be invalid in the other",
            "chronyc tracking, or timedatectl, on the machines of both API servers",
        ),
        "CertificateExpiring": warning("when it expires, members lose their leader", _RENEW),
        "CertificateExpired": failed("members that verify it no longer connect", _RENEW),
    },
)
_DAY = 86400.0
_SOON = 30 * _DAY  # seconds before expiry at which a certificate is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderServer:
    """The API server of a leader. `expires`: end of its certificate; `clock`: seconds by which it is ahead."""

    server: str
    error: str = ""
    expires: float | None = None
    clock: float | None = None


def cluster_sets(cluster: ExaminedCluster) -> list[ClusterSet]:
    """Return the ClusterSets. Raises SourceError."""
    return cluster.objects(ClusterSet)


def imports(cluster: ExaminedCluster) -> list[ApiClusterInfoImport]:
    """Return the ClusterInfoImports. Raises SourceError."""
    return cluster.objects(ApiClusterInfoImport)


def leader_servers(cluster: ExaminedCluster) -> list[LeaderServer]:
    """Ask the API servers of leaders. Raises SourceError: there is no list of them."""
    servers = {leader.server for cluster_set in cluster.read(cluster_sets) for leader in cluster_set.spec.leaders}
    cluster.progress("the leader's API server")
    return [ask_leader(server) for server in sorted(servers - {""})]


def ask_leader(server: str, timeout: float = TIMEOUT) -> LeaderServer:
    """Ask an API server, without credentials, for its certificate and its time. Raises nothing.

    The certificate is not verified: who verifies it is the member's controller; here only its dates are read.
    """
    url = urlsplit(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        host, port = url.hostname or "", url.port or 443
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        try:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            der = connection.sock.getpeercert(binary_form=True) or b""
            began = time.time()
            connection.request("GET", "/version")
            date = connection.getresponse().getheader("Date") or ""
            middle = (began + time.time()) / 2
        finally:
            connection.close()
        expires = expiry(ssl.DER_cert_to_PEM_cert(der).encode())
        clock = parsedate_to_datetime(date).timestamp() + 0.5 - middle if date else None
        return LeaderServer(server=server, expires=expires, clock=clock)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return LeaderServer(server=server, error=f"{type(error).__name__}: {error}")


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Judge the ClusterSets of this cluster, and the API servers of their leaders."""
    sets, servers = cluster.read(cluster_sets), cluster.read(leader_servers)
    joined = [(cluster_set, url) for cluster_set in sets if (url := cluster_set.leader_server)]
    if not sets and not cluster.read(imports):
        yield CHECK.finding("NotJoined", "there is no ClusterSet")
        return
    findings = [finding for cluster_set, url in joined for finding in _connection(cluster_set, url)]
    findings += [finding for server in servers for finding in _certificate(cluster, server)]
    yield from findings
    for server in servers:
        if server.error:
            yield CHECK.skipped(f"{server.server} is unreachable from this machine: {server.error}")
        elif server.clock is not None and cluster.clock is not None:
            owner = f"the leader ({server.server})"
            yield from clock_finding(CHECK, "LeaderClockOff", server.clock - cluster.clock, owner)
    if not findings:
        days = [(server.expires - cluster.now) / _DAY for server in servers if server.expires is not None]
        remaining = f", certificate expires in {min(days):.0f} days" if days else ""
        yield CHECK.passed(f"connected{remaining}" if joined else "no leader to connect to")


def _connection(cluster_set: ClusterSet, server: str) -> Iterator[CheckFinding]:
    ready = condition_of(cluster_set.status.conditions, "Ready")
    token = condition_of(cluster_set.status.conditions, LEADER_TOKEN)
    if token.is_false:
        yield CHECK.finding(token.reason, token.message, subject=cluster_set.subject)
    if token.is_false and token.reason == EXPIRED:
        return
    if not ready.type:
        yield CHECK.skipped(f"{cluster_set.subject} has no condition Ready: not processed yet")
    elif not ready.is_true and ready.reason != DUPLICATE:  # check `cluster-ids` reports it
        text = f"{ready.reason}: {ready.message}"
        reason = "LeaderRefusesToken" if "Unauthorized" in ready.message else "LeaderAway"
        yield CHECK.finding(
            reason, text, subject=cluster_set.subject, server=server, namespace=cluster_set.namespace
        )


def _certificate(cluster: ExaminedCluster, server: LeaderServer) -> Iterator[CheckFinding]:
    seconds_left = server.expires - cluster.now if server.expires is not None else _SOON
    if seconds_left < _SOON:
        reason = "CertificateExpiring" if seconds_left > 0 else "CertificateExpired"
        text = (
            f"expires in {seconds_left / _DAY:.0f} days"
            if seconds_left > 0
            else f"expired {-seconds_left / _DAY:.0f} days ago"
        )
        yield CHECK.finding(reason, f"certificate of {server.server} {text}", subject=server.server)
