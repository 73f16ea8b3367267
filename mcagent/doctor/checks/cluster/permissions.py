"""Check `permissions` in a cluster: accounts of installed roles have the permissions of their roles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import yaml

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin import manifests
from mcagent.controller.admin.fields import mapping_at, name_of, namespace_of, text_at, texts_at, value_at
from mcagent.controller.admin.manifests import CONFIGURED, LEADER_NAMESPACE, MEMBER_NAMESPACE, Part
from mcagent.doctor.check import NOT_READ, DoctorCheck, failed
from mcagent.doctor.checks.cluster.agents import component_of, pods
from mcagent.doctor.checks.cluster.controller import deployments
from mcagent.doctor.examined import TIMEOUT, ExaminedCluster
from mcagent.doctor.readings.reviews import allowed
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

CHECK = DoctorCheck(
    name="permissions",
    order=50,
    summary="accounts have the permissions that they need (SelfSubjectAccessReview, SubjectAccessReview)",
    causes={
        "AccountForbidden": failed(
            "that account lacks a permission that its role needs",
            "kubectl auth can-i {verb} {resource} --as={account} -n {namespace}; then apply "
            "the manifests of this version again, as they were installed (docs/upgrade.md)",
        ),
    },
)
_REVIEWS_TIMEOUT = 15.0  # seconds for all questions
_ROLES = {"agent": Part.AGENT, "member": Part.MEMBER, "leader": Part.LEADER}


@dataclass(frozen=True, slots=True)
class Account:
    """The ServiceAccount of a role that is installed here."""

    role: str
    namespace: str
    name: str

    @property
    def user(self) -> str:
        """Its name as a user of the API."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviews:
    """Of `checked` permissions the missing ones: account, namespace, verb, resource. `error`: why not all."""

    forbidden: tuple[tuple[Account, str, str, str], ...] = ()
    checked: int = 0
    error: str = ""


def reviews(cluster: ExaminedCluster) -> Reviews:
    """Check the permissions of installed roles' accounts. Raises SourceError."""
    forbidden: list[tuple[Account, str, str, str]] = []
    count, end = 0, time.monotonic() + _REVIEWS_TIMEOUT
    for account in _accounts(cluster):
        cluster.progress(f"what {account.user} may do")
        for right in sorted(_rights(account, _config(cluster, account))):
            if time.monotonic() > end:
                error = f"not all could be checked within {_REVIEWS_TIMEOUT:g} s"
                return Reviews(forbidden=tuple(forbidden), checked=count, error=error)
            try:
                permitted = _allowed(cluster, account, right)
            except SourceError as error:
                return Reviews(forbidden=tuple(forbidden), checked=count, error=str(error))
            count += 1
            if not permitted:
                namespace, verb, group, resource = right
                named = f"{resource}.{group}" if group else resource
                forbidden.append((account, namespace or account.namespace, verb, named))
    return Reviews(forbidden=tuple(forbidden), checked=count)


def _accounts(cluster: ExaminedCluster) -> list[Account]:
    """Return the account of each role that is installed; the chart's differ from deploy/'s."""
    accounts: dict[str, Account] = {}
    for obj in (*cluster.read(deployments), *cluster.read(pods)):
        role = component_of(obj)
        if role in _ROLES:
            spec = value_at(obj, "spec", "template", "spec") or value_at(obj, "spec")
            name = text_at(spec, "serviceAccountName") or f"mcagent-{role}"
            accounts.setdefault(role, Account(role, namespace_of(obj), name))
    return [accounts[role] for role in sorted(accounts)]


def _config(cluster: ExaminedCluster, account: Account) -> RawObject:
    """Return the configuration on which a role's rights depend; {} if there is none. Raises SourceError."""
    path = object_path(Kind.CONFIG_MAP, account.namespace, f"mcagent-{account.role}")
    try:
        config_map = cluster.client.request("GET", path, timeout=TIMEOUT)
        content = yaml.safe_load(text_at(config_map, "data", CONFIGURED[_ROLES[account.role]]))
    except ApiRefusalError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return {}
    except yaml.YAMLError:
        return {}
    values = mapping_at(content, "replicatedPolicies")
    node_keys = value_at(content, "nodeTrafficEncryption")
    keys_of_agents = {} if node_keys is None else {"nodeTrafficEncryption": str(node_keys)}
    return {"replicatedPolicies": {str(key): str(value) for key, value in values.items()}} | keys_of_agents


def _rights(account: Account, config: RawObject) -> set[tuple[str, str, str, str]]:
    """Return the rights in the roles of a part: namespace ("" for all), verb, group, resource.

    Those of a member and of agents depend on their configuration (`replicatedPolicies`, `nodeTrafficEncryption`).
    """
    part, home = _ROLES[account.role], account.namespace
    site = manifests.Site(
        namespace=home if part is not Part.LEADER else MEMBER_NAMESPACE,
        leader_namespace=home if part is Part.LEADER else LEADER_NAMESPACE,
        config={part: config},
    )
    roles = {f"mcagent-{part}", *([f"mcagent-{Part.MEMBER_POLICIES}"] if part is Part.MEMBER else [])}
    return {
        ("" if obj["kind"] == "ClusterRole" else namespace_of(obj), verb, group, resource)
        for obj in manifests.objects({part}, site)
        if obj["kind"] in {"ClusterRole", "Role"} and name_of(obj) in roles
        for rule in obj.get("rules") or ()
        if not rule.get("resourceNames")
        for group in texts_at(rule, "apiGroups")
        for resource in texts_at(rule, "resources")
        for verb in texts_at(rule, "verbs")
    }


def _allowed(cluster: ExaminedCluster, account: Account, right: tuple[str, str, str, str]) -> bool:
    namespace, verb, group, resource = right
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural}
    attributes |= {"subresource": subresource} if subresource else {}
    attributes |= {"namespace": namespace} if namespace else {}
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{account.namespace}"]
    spec = {"user": account.user, "groups": groups, "resourceAttributes": attributes}
    return allowed(cluster.client, "SubjectAccessReview", spec, TIMEOUT)


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report missing permissions."""
    answers = cluster.read(reviews)
    for account, namespace, verb, resource in answers.forbidden:
        yield CHECK.finding(
            "AccountForbidden",
            f"may not {verb} {resource}",
            subject=account.user,
            role=account.role,
            account=account.user,
            namespace=namespace,
            verb=verb,
            resource=resource,
        )
    if answers.error:
        yield CHECK.skipped(answers.error, reason=NOT_READ)
    elif answers.checked and not answers.forbidden:
        yield CHECK.passed(f"all {answers.checked} that the installed roles need")
