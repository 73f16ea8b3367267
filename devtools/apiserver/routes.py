"""From a request line to a Request: resource, namespace, name, subresource and RBAC verb. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from devtools.apiserver.access.accounts import ADMIN, User
from devtools.apiserver.errors import Json, bad_request, method_not_allowed, no_such_path
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import SERVICE_ACCOUNTS, ResourceType

_ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MANY = {"GET": "list", "POST": "create"}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request on a resource."""

    verb: str
    rt: ResourceType
    version: str
    namespace: str
    name: str
    subresource: str
    query: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    body: bytes = b""
    user: User = ADMIN

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` that answers carry."""
        return self.rt.api_version(self.version)

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter."""
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> int | None:
        """Return a query parameter that counts something. Raises ApiError 400 for any other text."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not text.isdecimal():
            raise bad_request(f"Invalid value: {text!r}: {name} must be a whole number, not negative")
        return int(text)


def split_target(target: str) -> tuple[list[str], dict[str, str]]:
    """Return the unquoted steps of a request target's path, and its query."""
    parts = urlsplit(target)
    steps = [unquote(step) for step in parts.path.split("/") if step]
    return steps, dict(parse_qsl(parts.query, keep_blank_values=True))


def route(
    registry: Registry, method: str, target: str, *, headers: Json, body: bytes, user: User = ADMIN
) -> Request:
    """Return what a request asks for. Raises ApiError 404 for an unknown path, 405 for a wrong method."""
    steps, query = split_target(target)
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, path = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, path = steps[1], steps[2], steps[3:]
    else:
        raise no_such_path()
    namespace = ""
    if path[0] == "namespaces" and len(path) > 2 and path[2] not in ("status", "finalize"):
        namespace, path = path[1], path[2:]
    rt = registry.find(group, version, path[0])
    if rt is None or len(path) > 3 or (namespace and not rt.namespaced):
        raise no_such_path()
    name = path[1] if len(path) > 1 else ""
    subresource = path[2] if len(path) > 2 else ""
    token = subresource == "token" and rt is SERVICE_ACCOUNTS
    if subresource and not token and (subresource != "status" or not rt.status):
        raise no_such_path()
    verb = {"POST": "create"}.get(method, "") if token else (_ONE if name else _MANY).get(method, "")
    if not verb or (subresource and verb == "delete"):
        raise method_not_allowed(method)
    if rt.namespaced and not namespace and verb != "list":
        raise method_not_allowed(method) if not name else no_such_path()
    request = Request(
        verb=verb,
        rt=rt,
        version=version,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query,
        content_type=str(headers.get("Content-Type") or "application/json").partition(";")[0].strip(),
        body=body,
        user=user,
    )
    if verb == "list" and request.flag("watch"):
        return replace(request, verb="watch")
    return request
