"""RBAC: may this user do that? Roles and bindings are read from the store at each question.

Reference: kubernetes.io/docs/reference/access-authn-authz/rbac. Not checked: that somebody who writes roles or
bindings has the rights that they grant (escalation), and aggregation of ClusterRoles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devtools.apiserver import errors
from devtools.apiserver.access.users import AUTHENTICATED, MASTERS, User
from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.objects.resources import RBAC
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.store import Store

# What the real server's system:discovery and system:public-info-viewer grant.
_PUBLIC = ("/version", "/healthz", "/livez", "/readyz")
_NAMED = re.compile(r"metadata\.name==?([^=!]+)")
_DISCOVERY = ("/api", "/apis", "/openapi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What is asked for, as rules see it. `resource` is "plural" or "plural/subresource"."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


def attributes(request: Request, verb: str = "") -> Attributes:
    """Return what a request asks for."""
    plural = request.rt.plural
    return Attributes(
        verb=verb or request.verb,
        group=request.rt.group,
        resource=f"{plural}/{request.subresource}" if request.subresource else plural,
        namespace=request.namespace,
        name=request.name or _selected(request.query.get("fieldSelector", "")),
    )


def _selected(field_selector: str) -> str:
    """Return the one name that a list or watch selects: RBAC takes it for a request by this name."""
    names = [found[1] for part in field_selector.split(",") if (found := _NAMED.fullmatch(part.strip()))]
    return names[0] if len(set(names)) == 1 else ""


class Authorizer:
    """Answers from the RBAC objects of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, user: User, asked: Attributes) -> None:
        """Raises ApiError 403 when the user may not do it."""
        if self.allows(user, asked):
            return
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        plural = asked.resource.partition("/")[0]
        what = f'cannot {asked.verb} resource "{asked.resource}" in API group "{asked.group}" {where}'
        raise errors.forbidden(asked.group, plural, asked.name, f'User "{user.name}" {what}')

    def check_path(self, user: User, verb: str, path: str) -> None:
        """Raises ApiError 403 when the user may not ask for a path that is no resource."""
        begins = tuple(path == start or path.startswith(f"{start}/") for start in _PUBLIC)
        if MASTERS in user.groups or (verb == "get" and any(begins)):
            return
        if AUTHENTICATED in user.groups and any(path == s or path.startswith(f"{s}/") for s in _DISCOVERY):
            return
        for rule in self._rules(user, ""):
            urls = _texts(rule, "nonResourceURLs")
            if _has(rule, "verbs", verb) and any(
                url == path or (url.endswith("*") and path.startswith(url[:-1])) for url in urls
            ):
                return
        raise ApiError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {verb} path "{path}"')

    def allows(self, user: User, asked: Attributes) -> bool:
        """Tell whether the user may do it."""
        if MASTERS in user.groups:
            return True
        return any(_grants(rule, asked) for rule in self._rules(user, asked.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Json]:
        """Yield the rules that a user has in a namespace; "" is the cluster scope."""
        for binding in self._objects("clusterrolebindings", ""):
            if _binds(binding, user, ""):
                yield from self._role(binding, "")
        if namespace:
            for binding in self._objects("rolebindings", namespace):
                if _binds(binding, user, namespace):
                    yield from self._role(binding, namespace)

    def _role(self, binding: Json, namespace: str) -> Iterator[Json]:
        ref = binding.get("roleRef") or {}
        if ref.get("kind") == "ClusterRole":
            if ref.get("name") == "cluster-admin":
                yield {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "nonResourceURLs": ["*"]}
            plural, home = "clusterroles", ""
        else:
            plural, home = "roles", namespace
        for role in self._objects(plural, home):
            if role["metadata"]["name"] == ref.get("name"):
                yield from (rule for rule in role.get("rules") or () if isinstance(rule, dict))

    def _objects(self, plural: str, namespace: str) -> list[Json]:
        rt = self._store.registry.get((RBAC, plural))
        assert rt is not None
        return [stored.obj for stored in self._store.select(rt, namespace)[0]]


def _texts(rule: Json, field: str) -> list[Any]:
    value = rule.get(field)
    return value if isinstance(value, list) else []


def _has(rule: Json, field: str, wanted: str) -> bool:
    values = _texts(rule, field)
    return "*" in values or wanted in values


def _grants(rule: Json, asked: Attributes) -> bool:
    if not (_has(rule, "verbs", asked.verb) and _has(rule, "apiGroups", asked.group)):
        return False
    _, _, subresource = asked.resource.partition("/")
    if not (_has(rule, "resources", asked.resource) or (subresource and f"*/{subresource}" in rule["resources"])):
        return False
    names = _texts(rule, "resourceNames")
    return not names or asked.name in names


def _binds(binding: Json, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "ServiceAccount":
            if user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}":
                return True
        elif (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
            return True
    return False
