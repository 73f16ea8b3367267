"""Validating admission webhooks: which of them a write goes to, the question, the answer.

Reference: kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers. Not done: mutating
webhooks, `matchConditions` (CEL; they are ignored). What the server deletes by itself, in a namespace or of a
definition that goes, is not asked about.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from devtools.apiserver import errors
from devtools.apiserver.access.users import User
from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.objects.resources import NAMESPACES, SERVICES, WEBHOOKS, ResourceType
from devtools.apiserver.storage.selectors import object_selector
from devtools.apiserver.storage.store import Store

MAX_REPLY = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One write. `kind` is CREATE, UPDATE or DELETE; `version` that of the request."""

    kind: str
    rt: ResourceType
    version: str
    subresource: str
    namespace: str
    name: str
    user: User
    new: Json | None
    old: Json | None
    dry_run: bool = False


class Admission:
    """Asks the webhooks that the store's configurations name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wanted(self, rt: ResourceType) -> bool:
        """Tell whether any webhook may be interested in a resource: a quick look before the work begins."""
        if rt is WEBHOOKS:  # or a bad one could never be taken away
            return False
        hooks = (hook for _, hook in self._webhooks())
        return any(_rule_matches(rule, None, rt, "", None) for hook in hooks for rule in hook.get("rules") or ())

    def review(self, write: Operation) -> None:
        """Ask all webhooks that match. Raises ApiError: what the first that refuses says, 500 where one fails."""
        for _, hook in sorted(self._webhooks(), key=lambda pair: pair[0]):
            version = self._matches(hook, write)
            if version is not None:
                self._ask(hook, write, version)

    def _webhooks(self) -> Iterator[tuple[str, Json]]:
        for stored in self._store.select(WEBHOOKS, "")[0]:
            for hook in stored.obj.get("webhooks") or ():
                yield stored.obj["metadata"]["name"], hook

    def _matches(self, hook: Json, write: Operation) -> str | None:
        """Return the version in which a webhook wants the object, None where it is not asked."""
        if not self._selected(hook, write):
            return None
        versions = [write.version]
        if hook.get("matchPolicy", "Equivalent") == "Equivalent":
            versions += [version for version in write.rt.versions if version != write.version]
        for version in versions:
            for rule in hook.get("rules") or ():
                if _rule_matches(rule, write.kind, write.rt, write.subresource, version):
                    return version
        return None

    def _selected(self, hook: Json, write: Operation) -> bool:
        chosen = object_selector(hook.get("objectSelector") or {})
        if not any(chosen(obj) for obj in (write.new, write.old) if obj is not None):
            return False
        selector = hook.get("namespaceSelector") or {}
        if not selector or (not write.rt.namespaced and write.rt is not NAMESPACES):
            return True
        if write.rt is NAMESPACES:
            home: Json = write.new or write.old or {}
        else:
            try:
                home = self._store.get(NAMESPACES, "", write.namespace).obj
            except ApiError:
                return False
        return object_selector(selector)(home)

    def _ask(self, hook: Json, write: Operation, version: str) -> None:
        name = str(hook.get("name", ""))
        if write.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise errors.bad_request(f"admission webhook {name!r} does not support dry run")
        question = _question(write, version)
        try:
            answer = self._call(hook, question)
            response = answer["response"]
            if response["uid"] != question["request"]["uid"] or not isinstance(response["allowed"], bool):
                raise ValueError("the response is to another question")
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as err:
            if hook.get("failurePolicy", "Fail") == "Ignore":
                return
            raise errors.internal(f'failed calling webhook "{name}": {err or type(err).__name__}') from None
        if not response["allowed"]:
            raise _refusal(name, response.get("status") or {})

    def _call(self, hook: Json, question: Json) -> Any:
        """Post a question. Raises OSError, ValueError, KeyError, HTTPException."""
        config = hook["clientConfig"]
        timeout = float(hook.get("timeoutSeconds") or 10)
        context = ssl.create_default_context()
        if bundle := config.get("caBundle"):
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        if url := config.get("url"):
            parts = urlsplit(url)
            host, port, path = parts.hostname or "", parts.port or 443, parts.path or "/"
            path += f"?timeout={timeout:g}s"
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            service = config["service"]
            host = f"{service['name']}.{service['namespace']}.svc"
            path = f"{service.get('path') or '/'}?timeout={timeout:g}s"
            spec = self._store.get(SERVICES, service["namespace"], service["name"]).obj["spec"]
            address = spec["externalName"] if spec["type"] == "ExternalName" else spec["clusterIP"]
            connection = _ServiceConnection(host, service.get("port") or 443, timeout, context, address)
        try:
            body = json.dumps(question).encode()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read(MAX_REPLY + 1)
            if reply.status != 200 or len(text) > MAX_REPLY:
                raise ValueError(f"the server answered {reply.status}")
            return json.loads(text)
        except ApiError as err:
            raise ValueError(err.message) from None
        finally:
            connection.close()


class _ServiceConnection(http.client.HTTPSConnection):
    """A connection to a Service's address that verifies the Service's name."""

    def __init__(self, name: str, port: int, timeout: float, context: ssl.SSLContext, address: str) -> None:
        super().__init__(name, port, timeout=timeout, context=context)
        self._address, self._tls = address, context

    def connect(self) -> None:
        plain = http.client.HTTPConnection(self._address, self.port, timeout=self.timeout)
        plain.connect()
        self.sock = self._tls.wrap_socket(plain.sock, server_hostname=self.host)


def _has(rule: Json, field: str, wanted: str | None) -> bool:
    values = rule.get(field) or ()
    return wanted is None or "*" in values or wanted in values


def _rule_matches(
    rule: Json, operation: str | None, rt: ResourceType, subresource: str, version: str | None
) -> bool:
    """Tell whether a rule covers a write; without operation and version, whether it may cover one on `rt`."""
    if not (_has(rule, "operations", operation) and _has(rule, "apiGroups", rt.group)):
        return False
    scope = rule.get("scope") or "*"
    if not _has(rule, "apiVersions", version) or scope not in ("*", "Namespaced" if rt.namespaced else "Cluster"):
        return False
    for wanted in rule.get("resources") or ():
        plural, _, part = wanted.partition("/")
        if plural in ("*", rt.plural) and (operation is None or part in ("*", subresource)):
            return True
    return False


def _question(write: Operation, version: str) -> Json:
    group, rt = write.rt.group, write.rt
    asked = {"group": group, "version": version}
    came = {"group": group, "version": write.version}

    def shown(obj: Json | None) -> Json | None:
        return None if obj is None else {**obj, "apiVersion": rt.api_version(version), "kind": rt.kind}

    options = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}[write.kind]
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {**asked, "kind": rt.kind},
        "resource": {**asked, "resource": rt.plural},
        "requestKind": {**came, "kind": rt.kind},
        "requestResource": {**came, "resource": rt.plural},
        "name": write.name,
        "operation": write.kind,
        "userInfo": write.user.as_json(),
        "object": shown(write.new),
        "oldObject": shown(write.old),
        "dryRun": write.dry_run,
        "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
    }
    if write.subresource:
        request |= {"subResource": write.subresource, "requestSubResource": write.subresource}
    if write.namespace:
        request["namespace"] = write.namespace
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _refusal(name: str, status: Json) -> ApiError:
    """Return what a client is told (k8s.io/apiserver, admission/plugin/webhook/errors)."""
    code = status.get("code")
    code = code if isinstance(code, int) and code >= 400 else 400
    message = f'admission webhook "{name}" denied the request'
    told = status.get("message") or status.get("reason")
    return ApiError(
        code, str(status.get("reason") or ""), f"{message}: {told}" if told else f"{message} without explanation"
    )
