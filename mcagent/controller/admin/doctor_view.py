"""What the doctor reads of a cluster's API, as it came. All reading is here, each request within a deadline."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from cryptography import x509

from mcagent.controller.admin import manifests
from mcagent.controller.admin.manifests import CRD, LEADER_NAMESPACE, MEMBER_NAMESPACE, Part, Role
from mcagent.controller.contract.raw import items_at, name_of, namespace_of, text_at, texts_at, value_at
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

TIMEOUT = 10.0  # seconds for one request
REVIEWS = 15.0  # seconds for all questions about permissions
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CRDS = object_path(Kind.CUSTOM_RESOURCE_DEFINITION, "")
_OURS = {"labelSelector": "app.kubernetes.io/name=mcagent"}
_ROLES = {"agent": Part.AGENT, "member": Part.MEMBER, "leader": Part.LEADER}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderServer:
    """The API server of a leader. `expires`: end of its certificate; `clock`: seconds by which it is ahead."""

    server: str
    error: str = ""
    expires: float | None = None
    clock: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """A cluster's objects. `error`: nothing could be read; `unread`: why, by what could not be read."""

    server: str = ""
    error: str = ""
    clock: float | None = None
    now: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)
    nodes: Sequence[RawObject] = ()
    pods: Sequence[RawObject] = ()  # ours
    workloads: Sequence[tuple[str, str, str]] = ()  # everybody's: kind, namespace, name
    deployments: Sequence[RawObject] = ()  # ours
    crds: Mapping[str, RawObject] = field(default_factory=dict)
    webhooks: Sequence[RawObject] = ()
    slices: Mapping[tuple[str, str], int] = field(default_factory=dict)  # ready endpoints by Service
    leases: Mapping[tuple[str, str], RawObject] = field(default_factory=dict)
    cluster_sets: Sequence[RawObject] = ()
    imports: Sequence[RawObject] = ()
    exports: Sequence[RawObject] = ()
    refusals: Sequence[RawObject] = ()  # Events about endpoints of imported Services
    forbidden: Sequence[tuple[str, str, str, str, str]] = ()  # role, account, namespace, verb, resource
    asked: int = 0
    leaders: Sequence[LeaderServer] = ()


def wanted_crds(role: Role) -> list[RawObject]:
    """Return the CRDs of this version for a role."""
    parts = {Part.CRDS, *manifests.PARTS[role]}
    return [obj for obj in manifests.objects(parts, manifests.Site()) if obj["kind"] == CRD]


def read_cluster(client: Client, progress: Callable[[str], None]) -> ClusterSeen:
    """Read what the doctor judges. Raises nothing: what cannot be read says why."""
    try:
        clock = client.clock(timeout=TIMEOUT)
    except ApiRefusalError:
        clock = None
    except SourceError as error:
        return ClusterSeen(server=client.server, error=str(error))
    reader = _Reader(client, progress)
    pods = reader.items("Pods of mcagent", "/api/v1/pods", _OURS)
    deployments = reader.items("Deployments of mcagent", "/apis/apps/v1/deployments", _OURS)
    cluster_sets = reader.items("ClusterSets", object_path(Kind.CLUSTER_SET, ""))
    webhooks = [
        hook
        for kind in (Kind.VALIDATING_WEBHOOK_CONFIGURATION, Kind.MUTATING_WEBHOOK_CONFIGURATION)
        for hook in reader.items(str(kind), object_path(kind, ""), _OURS)
    ]
    nodes = reader.items("Nodes", object_path(Kind.NODE, ""))
    forbidden, asked = reader.reviews(_accounts(pods, deployments))
    return ClusterSeen(
        server=client.server,
        clock=clock,
        now=time.time(),
        nodes=nodes,
        pods=pods,
        workloads=tuple(reader.workloads()),
        deployments=deployments,
        crds={name_of(one): one for one in reader.items("CRDs", _CRDS)},
        webhooks=webhooks,
        slices=reader.ready_endpoints(webhooks),
        leases={
            (namespace_of(one), name_of(one)): one
            for one in reader.items("Leases", object_path(Kind.LEASE, ""))
            if name_of(one) in {"mcagent-leader", "mcagent-member"}
        },
        cluster_sets=cluster_sets,
        imports=reader.items("ClusterInfoImports", object_path(Kind.CLUSTER_INFO_IMPORT, "")),
        exports=reader.items("ServiceExports", object_path(Kind.SERVICE_EXPORT, "")),
        refusals=reader.items("Events", object_path(Kind.EVENT, ""), {"fieldSelector": "reason=EndpointsRefused"}),
        forbidden=forbidden,
        asked=asked,
        leaders=tuple(_leaders(cluster_sets, progress)),
        unread=reader.unread,
    )


def _accounts(pods: Sequence[RawObject], deployments: Sequence[RawObject]) -> dict[str, tuple[str, str]]:
    """Return namespace and ServiceAccount of each role that is installed; the chart's differ from deploy/'s."""
    found: dict[str, tuple[str, str]] = {}
    for one in (*deployments, *pods):
        role = str((one.get("metadata", {}).get("labels") or {}).get("app.kubernetes.io/component", ""))
        if role in _ROLES:
            spec = value_at(one, "spec", "template", "spec") or value_at(one, "spec")
            account = text_at(spec, "serviceAccountName") or f"mcagent-{role}"
            found.setdefault(role, (namespace_of(one), account))
    return found


class _Reader:
    def __init__(self, client: Client, progress: Callable[[str], None]) -> None:
        self._client, self._progress = client, progress
        self.unread: dict[str, str] = {}

    def items(self, what: str, path: str, query: Mapping[str, str] | None = None) -> list[RawObject]:
        """Return the items of a list; empty where the server does not know the kind."""
        self._progress(what)
        try:
            answer = self._client.request("GET", path, {"limit": "20000", **(query or {})}, timeout=TIMEOUT)
        except ApiRefusalError as error:
            if error.code != 404:
                self.unread[what] = str(error)
            return []
        except SourceError as error:
            self.unread[what] = str(error)
            return []
        return items_at(answer, "items")

    def workloads(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, namespace and name of everybody's Deployments and DaemonSets."""
        for kind, plural in (("Deployment", "deployments"), ("DaemonSet", "daemonsets")):
            for one in self.items(f"{kind}s", f"/apis/apps/v1/{plural}"):
                yield kind, namespace_of(one), name_of(one)

    def ready_endpoints(self, webhooks: Sequence[RawObject]) -> dict[tuple[str, str], int]:
        """Return how many endpoints of each webhook's Service are ready."""
        found = {}
        for namespace, name in sorted(set(services_of(webhooks))):
            query = {"labelSelector": f"kubernetes.io/service-name={name}"}
            slices = self.items("EndpointSlices", object_path(Kind.ENDPOINT_SLICE, namespace), query)
            endpoints = [one for part in slices for one in items_at(part, "endpoints")]
            found[namespace, name] = sum(value_at(one, "conditions", "ready") is not False for one in endpoints)
        return found

    def reviews(self, accounts: Mapping[str, tuple[str, str]]) -> tuple[list[tuple[str, str, str, str, str]], int]:
        """Return what accounts of installed roles may not do of what their roles say, and how much was asked.

        `accounts`: namespace and ServiceAccount by role.
        """
        forbidden: list[tuple[str, str, str, str, str]] = []
        asked = 0
        end = time.monotonic() + REVIEWS
        for role, (home, name) in sorted(accounts.items()):
            account = f"system:serviceaccount:{home}:{name}"
            for namespace, verb, group, resource in sorted(_rights(_ROLES[role], home)):
                self._progress(f"what {account} may do")
                if time.monotonic() > end:
                    self.unread["permissions"] = f"not all could be checked within {REVIEWS:g} s"
                    return forbidden, asked
                attributes = {"verb": verb, "group": group, "resource": resource.partition("/")[0]}
                attributes |= {"subresource": resource.partition("/")[2]} if "/" in resource else {}
                attributes |= {"namespace": namespace} if namespace else {}
                spec = {"user": account, "groups": _groups(home), "resourceAttributes": attributes}
                body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
                try:
                    answer = self._client.request("POST", _ACCESS, body=body, timeout=TIMEOUT)
                except SourceError as error:
                    self.unread["permissions"] = str(error)
                    return forbidden, asked
                asked += 1
                if not isinstance(answer, dict) or answer.get("status", {}).get("allowed") is not True:
                    named = f"{resource}.{group}" if group else resource
                    forbidden.append((role, account, namespace or home, verb, named))
        return forbidden, asked


def _groups(namespace: str) -> list[str]:
    return ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"]


def _rights(part: Part, home: str) -> set[tuple[str, str, str, str]]:
    """Return what the roles of a part allow to everybody of it: namespace ("" for all), verb, group, resource."""
    site = manifests.Site(
        namespace=home if part is not Part.LEADER else MEMBER_NAMESPACE,
        leader_namespace=home if part is Part.LEADER else LEADER_NAMESPACE,
    )
    return {
        ("" if obj["kind"] == "ClusterRole" else namespace_of(obj), verb, group, resource)
        for obj in manifests.objects({part}, site)
        if obj["kind"] in {"ClusterRole", "Role"} and name_of(obj) == f"mcagent-{part}"
        for rule in obj.get("rules") or ()
        if not rule.get("resourceNames")
        for group in texts_at(rule, "apiGroups")
        for resource in texts_at(rule, "resources")
        for verb in texts_at(rule, "verbs")
    }


def services_of(webhooks: Sequence[RawObject]) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the Services of webhooks."""
    for configuration in webhooks:
        for hook in items_at(configuration, "webhooks"):
            if name := text_at(hook, "clientConfig", "service", "name"):
                yield text_at(hook, "clientConfig", "service", "namespace"), name


def _leaders(cluster_sets: Sequence[RawObject], progress: Callable[[str], None]) -> Iterator[LeaderServer]:
    servers = {text_at(leader, "server") for one in cluster_sets for leader in items_at(one, "spec", "leaders")}
    for server in sorted(servers - {""}):
        progress(f"the leader's API server {server}")
        yield ask_leader(server)


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
        expires = x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()
        clock = parsedate_to_datetime(date).timestamp() + 0.5 - middle if date else None
        return LeaderServer(server=server, expires=expires, clock=clock)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return LeaderServer(server=server, error=f"{type(error).__name__}: {error}")
