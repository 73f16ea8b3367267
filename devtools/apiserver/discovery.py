"""Discovery: /version, /api, /apis, resource lists and as much OpenAPI as kubectl insists on."""

from __future__ import annotations

from typing import Any

from devtools.apiserver.errors import Json
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import SERVICE_ACCOUNTS, VERBS, ResourceType

# What the server is like, for clients that choose by version.
VERSION = {"major": "1", "minor": "30", "gitVersion": "v1.30.0-mcagent", "gitCommit": "", "gitTreeState": "clean"}
VERSION |= {"buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64"}


def discover(registry: Registry, steps: list[str], address: str) -> Json | None:
    """Return the discovery document at a path (as steps), or None where there is none."""
    match steps:
        case ["version"]:
            return dict(VERSION)
        case ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        case ["apis"]:
            groups = [_group(registry, group) for group in _groups(registry)]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group] if group in _groups(registry):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, group)}
        case ["api", "v1"]:
            return _resources(registry, "", "v1")
        case ["apis", group, version] if version in _versions(registry, group):
            return _resources(registry, group, version)
        case ["openapi", "v3"]:
            return {"paths": {}}
        case ["openapi", "v2"]:
            info = {"title": "mcagent embedded API server", "version": VERSION["gitVersion"]}
            return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}
    return None


def _groups(registry: Registry) -> list[str]:
    return sorted({rt.group for rt in registry.all() if rt.group})


def _versions(registry: Registry, group: str) -> list[str]:
    return sorted({version for rt in registry.all() if rt.group == group for version in rt.versions}, reverse=True)


def _group(registry: Registry, group: str) -> Json:
    versions = [{"groupVersion": f"{group}/{v}", "version": v} for v in _versions(registry, group)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(registry: Registry, group: str, version: str) -> Json:
    served: list[Json] = []
    for rt in registry.all():
        if rt.group == group and version in rt.versions:
            served.append(_resource(rt))
            if rt.status:
                status = _resource(rt) | {"name": f"{rt.plural}/status", "verbs": ["get", "patch", "update"]}
                status.pop("shortNames", None)
                served.append(status)
            if rt is SERVICE_ACCOUNTS:
                token = {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}
                served.append(_resource(rt) | token | {"name": f"{rt.plural}/token", "verbs": ["create"]})
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": served}


def _resource(rt: ResourceType) -> Json:
    described: dict[str, Any] = {
        "name": rt.plural,
        "singularName": rt.kind.lower(),
        "namespaced": rt.namespaced,
        "kind": rt.kind,
        "verbs": VERBS,
    }
    if rt.short_names:
        described["shortNames"] = list(rt.short_names)
    return described
