"""The findings of `mcagent migrate check`: manual steps and changes when mcagent's controller replaces Antrea's.

It changes nothing; the steps are in docs/antrea.md. Pure, except `read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mcagent.config.reader import ConfigError, ConfigText
from mcagent.controller.admin.cluster import Cluster, Object
from mcagent.controller.admin.fields import items_at, mapping_at, name_of, text_at, texts_at, value_at
from mcagent.controller.admission.identity import bound_cluster, bound_clusters
from mcagent.controller.config import ControllerRole, load
from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.commands import TOKEN_ROLE, bind_account, let_read_token
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import address_of
from mcagent.controller.leader.exports.payloads import granted_networks
from mcagent.controller.settings import EndpointIpType
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ConfigMap, ServiceAccount
from mcagent.model.api.multicluster import (
    ApiGateway,
    ClusterClaim,
    ClusterSet,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
)
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

DEPLOYMENT = "antrea-mc-controller"
_SERVED_BY = {"served-by": "antrea-mc-controller"}
_MEMBER_ROLE = "antrea-mc-member-cluster-role"
_CONFIG_KEY = "controller_manager_config.yaml"
_TAKEN = frozenset({*ExportKind, names.POLICY, names.KUBERNETES_POLICY})


class Level(StrEnum):
    """The level of a finding. With a MUST, `mcagent migrate check` fails."""

    MUST = "must"  # to be done, by a person
    LOST = "lost"  # does not work any more afterwards
    CHANGES = "changes"  # by itself, and nothing has to be done
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `command`: the shell command for the manual step, "": none."""

    level: Level
    about: str
    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects of a cluster that the findings depend on."""

    namespace: str
    deployment: RawObject | None = None
    webhooks: Sequence[RawObject] = ()
    roles: Sequence[RawObject] = ()
    bindings: Sequence[RawObject] = ()
    accounts: Sequence[ServiceAccount] = ()
    config_maps: Sequence[ConfigMap] = ()
    cluster_sets: Sequence[ClusterSet] = ()
    claims: Sequence[ClusterClaim] = ()
    announces: Sequence[MemberClusterAnnounce] = ()
    exports: Sequence[ResourceExport] = ()
    imports: Sequence[ResourceImport] = ()
    gateways: Sequence[ApiGateway] = ()


def read(cluster: Cluster, namespace: str) -> Objects:
    """Read a cluster; kinds that it does not serve are empty. Raises SourceError."""

    def listed(kind: Kind, scope: str = namespace) -> list[RawObject]:
        return items_at(cluster.find_any(object_path(kind, scope)), "items")

    def typed(cls: type[Object]) -> list[Object]:
        return [read_as(cls, item) for item in listed(cls.KIND)]

    return Objects(
        namespace=namespace,
        deployment=cluster.find_any(f"/apis/apps/v1/namespaces/{namespace}/deployments/{DEPLOYMENT}"),
        webhooks=[
            {**item, "kind": str(kind)}
            for kind in (Kind.VALIDATING_WEBHOOK_CONFIGURATION, Kind.MUTATING_WEBHOOK_CONFIGURATION)
            for item in listed(kind, "")
        ],
        roles=listed(Kind.ROLE),
        bindings=listed(Kind.ROLE_BINDING),
        accounts=typed(ServiceAccount),
        config_maps=typed(ConfigMap),
        cluster_sets=typed(ClusterSet),
        claims=typed(ClusterClaim),
        announces=typed(MemberClusterAnnounce),
        exports=typed(ResourceExport),
        imports=typed(ResourceImport),
        gateways=typed(ApiGateway),
    )


def check(role: ControllerRole, objects: Objects) -> list[Finding]:
    """Return the findings for a controller of this role, in the order of the manual steps."""
    of_role = _leader(objects) if role is ControllerRole.LEADER else _member(objects)
    return [*_configuration(role, objects), *of_role, *_controller(objects)]


def _controller(objects: Objects) -> Iterator[Finding]:
    """Yield the objects of Antrea's controller to delete: the last steps, after which no controller runs."""
    where, deployment = objects.namespace, objects.deployment
    for hook in objects.webhooks:
        services = {text_at(item, "clientConfig", "service", "namespace") for item in items_at(hook, "webhooks")}
        labels = mapping_at(hook, "metadata", "labels")
        if where in services and labels.items() >= _SERVED_BY.items():
            yield Finding(
                level=Level.MUST,
                about=f"{text_at(hook, 'kind')} {name_of(hook)}",
                text="nothing answers it once Antrea's controller is stopped: every write it covers, heartbeats "
                "too, would be refused. Delete it right before",
                command=f"kubectl delete {text_at(hook, 'kind').lower()} {name_of(hook)}",
            )
    if deployment is not None and value_at(deployment, "spec", "replicas") != 0:
        yield Finding(
            level=Level.MUST,
            about=f"Deployment {where}/{DEPLOYMENT}",
            text="two controllers would write the same objects: stop Antrea's before mcagent's starts",
            command=f"kubectl -n {where} scale deployment {DEPLOYMENT} --replicas=0",
        )


def _configuration(role: ControllerRole, objects: Objects) -> Iterator[Finding]:
    """Yield the findings about Antrea's configuration file."""
    for item in objects.config_maps:
        text = item.data.get(_CONFIG_KEY, "")
        if not text:
            continue
        about = item.subject
        try:
            settings = load(role, ConfigText(text, "of Antrea"), {}, {})
        except ConfigError as error:
            for wrong in error.errors:
                yield Finding(level=Level.MUST, about=about, text=f"{wrong.path}: {wrong.reason}")
            continue
        yield Finding(level=Level.KEPT, about=about, text="its configuration can be used as it is")
        if settings.member.endpoint_ip_type is EndpointIpType.POD_IP and not settings.member.pod_cidrs:
            yield Finding(
                level=Level.MUST,
                about=about,
                text="endpointIPType is PodIP, and podCIDRs is not set: set podCIDRs, or "
                "allowedEndpointCIDRs in the leader and all members; other endpoints are refused",
            )
        if settings.member.stretched_network_policy and role is ControllerRole.MEMBER:
            yield Finding(
                level=Level.CHANGES,
                about=about,
                text="enableStretchedNetworkPolicy is true: mcagent's controller reads Pods for it, which needs "
                "the same in the chart or mcagent deploy (member.config.enableStretchedNetworkPolicy)",
            )
        for remark in settings.remarks:
            yield Finding(level=Level.CHANGES, about=about, text=remark.partition(": ")[2])


def _leader(objects: Objects) -> Iterator[Finding]:
    members = {
        text_at(subject, "name")
        for binding in objects.bindings
        if text_at(binding, "roleRef", "name") == _MEMBER_ROLE
        for subject in items_at(binding, "subjects")
        if text_at(subject, "kind") == "ServiceAccount"
    }
    unknown = {announce.cluster_id for announce in objects.announces} - bound_clusters(objects.accounts)
    for account in objects.accounts:
        if account.name not in members or bound_cluster(account):
            continue
        cluster_id = next(iter(unknown)) if len(unknown) == 1 else ""
        yield Finding(
            level=Level.MUST if unknown else Level.LOST,
            about=f"ServiceAccount {objects.namespace}/{account.name}",
            text=f"stands for no cluster{_one_of(unknown)}, as accounts made before Antrea 2.7: "
            "what its member writes is refused",
            command=bind_account(objects.namespace, account.name, cluster_id, placeholder="CLUSTER_ID"),
        )
    kinds = Counter(export.spec.kind for export in objects.exports)
    for kind, number in sorted(kinds.items()):
        if kind not in _TAKEN:
            text = f"{number} of kind {kind}, unsupported: what was made from them stays as it is"
            yield Finding(level=Level.LOST, about="ResourceExports", text=text)
    if kinds[ExportKind.LABEL_IDENTITY]:
        yield Finding(
            level=Level.LOST,
            about="ResourceExports",
            text=f"{kinds[ExportKind.LABEL_IDENTITY]} of kind LabelIdentity, unless the leader has "
            "enableStretchedNetworkPolicy: true",
        )
    yield from _endpoints_outside(objects)
    text = f"{sum(kinds.values())} exports, {len(objects.imports)} imports: none is deleted or recreated"
    yield Finding(level=Level.KEPT, about="ResourceExports, ResourceImports", text=text)
    yield Finding(
        level=Level.CHANGES,
        about="ResourceImports",
        text="of ClusterInfos get an annotation: which claims are granted; statuses get mcagent's messages",
    )


def _endpoints_outside(objects: Objects) -> Iterator[Finding]:
    """Yield the clusters with endpoints in no CIDR that they publish: Pods without a route through a gateway."""
    networks = granted_networks(objects.imports)
    outside: dict[str, set[str]] = {}
    for export in objects.exports:
        cluster, endpoints = export.spec.cluster_id, export.spec.endpoints
        for subset in endpoints.subsets if endpoints is not None else ():
            for text in (address.ip for address in subset.addresses):
                number = address_of(text)
                if number is not None and cluster not in networks.owners(number):
                    outside.setdefault(cluster, set()).add(text)
    for cluster, addresses in sorted(outside.items()):
        yield Finding(
            level=Level.LOST,
            about=f"cluster {cluster}",
            text=f"{len(addresses)} endpoints that it exports ({min(addresses)}, ...) lie in no CIDR that it "
            "publishes, unless allowedEndpointCIDRs has them, in the leader and in all members",
        )


def _one_of(clusters: set[str]) -> str:
    return f" (one of {', '.join(sorted(clusters))})" if clusters else ""


def _member(objects: Objects) -> Iterator[Finding]:
    joined = [cluster_set for cluster_set in objects.cluster_sets if cluster_set.leader_server]
    if len(joined) > 1:
        about = ", ".join(f"ClusterSet {objects.namespace}/{item.name}" for item in joined)
        text = "a cluster is a member of one ClusterSet: of these only the oldest counts"
        yield Finding(level=Level.LOST, about=about, text=text)
    for item in joined:
        about = f"ClusterSet {objects.namespace}/{item.name}"
        if not item.spec.cluster_id:
            cluster_id = claimed(objects.claims)
            if names.is_cluster_id(cluster_id):
                text = (
                    f'made before Antrea 1.13: spec.clusterID is filled in, "{cluster_id}", as its ClusterClaim '
                    "says"
                )
                yield Finding(level=Level.CHANGES, about=about, text=text)
            else:
                yield Finding(
                    level=Level.MUST,
                    about=about,
                    text="has no spec.clusterID, and no ClusterClaim id.k8s.io says which it is",
                    command=f"kubectl -n {objects.namespace} patch clusterset {item.name} --type merge -p "
                    '\'{"spec":{"clusterID":"CLUSTER_ID"}}\'',
                )
        yield from _secret(objects, item)
        if names.MEMBER_FINALIZER not in item.metadata.finalizers:
            text = f"gets the finalizer {names.MEMBER_FINALIZER}, to be removed on the way back"
            yield Finding(level=Level.CHANGES, about=about, text=text)
    text = (
        f"{len(objects.gateways)} Gateways, all imported Services and ServiceImports: with the uid that they have"
    )
    yield Finding(level=Level.KEPT, about=f"namespace {objects.namespace}", text=text)
    yield Finding(
        level=Level.CHANGES,
        about="imported Services",
        text="get EndpointSlices of mcagent; Antrea's Endpoints are deleted after that (writeEndpoints: auto)",
    )


def _secret(objects: Objects, cluster_set: ClusterSet) -> Iterator[Finding]:
    """Yield the finding that mcagent's controller has no right to read the Secret of a ClusterSet."""
    where = objects.namespace
    for leader in cluster_set.spec.leaders[:1]:
        secret = leader.secret
        rules = (rule for role in objects.roles if name_of(role) == TOKEN_ROLE for rule in items_at(role, "rules"))
        if not any(secret in texts_at(rule, "resourceNames") for rule in rules):
            yield Finding(
                level=Level.MUST,
                about=f"Role {where}/{TOKEN_ROLE}",
                text=f"is missing, or not for Secret {secret}, which has the leader's token",
                command=let_read_token(where, secret),
            )
