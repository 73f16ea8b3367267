"""Validating admission webhooks: which of them a write goes to, the question, the answer.

Reference: kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers. Rules choose by
operation, group and resource, and by labels of the namespace (`matchLabels`). Everything else that chooses
(`matchConditions`, `objectSelector`, versions) is ignored. What goes with its namespace is not asked about.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import uuid
from typing import Any
from urllib.parse import urlsplit

from devtools.apiserver import errors
from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.objects.resources import NAMESPACES, SERVICES, WEBHOOKS
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.store import Review, Store

MAX_REPLY = 1024 * 1024  # bytes


class Admission:
    """Asks the webhooks that the store's configurations name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def review(self, request: Request, operation: str) -> Review | None:
        """Return what asks all webhooks that match, None if none does. `operation`: CREATE, UPDATE or DELETE.

        It raises ApiError: the first refusal, or 500 if a webhook fails.
        """
        configurations = self._store.select(WEBHOOKS, "")[0]
        hooks = [hook for stored in configurations for hook in stored.obj.get("webhooks") or ()]
        matching = [hook for hook in hooks if self._matches(hook, request, operation)]

        def ask_all(old: Json | None, new: Json) -> None:
            for hook in matching:
                self._ask(hook, _question(request, operation, old, None if operation == "DELETE" else new))

        return ask_all if matching else None

    def _matches(self, hook: Json, request: Request, operation: str) -> bool:
        resource = request.rt.plural + (f"/{request.subresource}" if request.subresource else "")
        values = {"operations": operation, "apiGroups": request.rt.group, "resources": resource}
        rules = hook.get("rules") or ()
        if not any(
            all({"*", value} & set(rule.get(field) or ()) for field, value in values.items()) for rule in rules
        ):
            return False
        labels = (hook.get("namespaceSelector") or {}).get("matchLabels") or {}
        home = self._store.find(NAMESPACES, "", request.namespace)
        return not request.rt.namespaced or (
            home is not None and labels.items() <= (home.obj["metadata"].get("labels") or {}).items()
        )

    def _ask(self, hook: Json, question: Json) -> None:
        name = str(hook.get("name", ""))
        try:
            response = self._call(hook, question)["response"]
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
        timeout = float(hook.get("timeoutSeconds") or 10)
        connection, path = self._connection(hook["clientConfig"], timeout)
        try:
            body = json.dumps(question).encode()
            connection.request("POST", f"{path}?timeout={timeout:g}s", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read(MAX_REPLY + 1)
            if reply.status != 200 or len(text) > MAX_REPLY:
                raise ValueError(f"the server answered {reply.status}")
            return json.loads(text)
        finally:
            connection.close()

    def _connection(self, config: Json, timeout: float) -> tuple[_Connection, str]:
        """Return a connection to a webhook that is not open yet, and the path."""
        bundle = base64.b64decode(config.get("caBundle") or "").decode()
        context = ssl.create_default_context(cadata=bundle or None)
        if url := config.get("url"):
            parts = urlsplit(url)
            host = parts.hostname or ""
            return _Connection(host, parts.port or 443, timeout, context, host), parts.path or "/"
        service = config["service"]
        stored = self._store.find(SERVICES, service["namespace"], service["name"])
        if stored is None:
            raise ValueError(f'service "{service["name"]}" not found')
        spec = stored.obj["spec"]
        address = spec["externalName"] if spec["type"] == "ExternalName" else spec["clusterIP"]
        host = f"{service['name']}.{service['namespace']}.svc"
        return _Connection(host, service.get("port") or 443, timeout, context, address), service.get("path") or "/"


class _Connection(http.client.HTTPSConnection):
    """A connection to an address that verifies the name of the webhook's Service, or of its URL."""

    def __init__(self, name: str, port: int, timeout: float, context: ssl.SSLContext, address: str) -> None:
        super().__init__(name, port, timeout=timeout, context=context)
        self._address, self._tls = address, context

    def connect(self) -> None:
        plain = http.client.HTTPConnection(self._address, self.port, timeout=self.timeout)
        plain.connect()
        self.sock = self._tls.wrap_socket(plain.sock, server_hostname=self.host)


def _question(request: Request, operation: str, old: Json | None, new: Json | None) -> Json:
    rt = request.rt
    version = {"group": rt.group, "version": request.version}

    def shown(obj: Json | None) -> Json | None:
        return None if obj is None else {**obj, "apiVersion": request.api_version, "kind": rt.kind}

    question = {
        "uid": str(uuid.uuid4()),
        "kind": {**version, "kind": rt.kind},
        "resource": {**version, "resource": rt.plural},
        "name": (new or old or {})["metadata"]["name"],
        "operation": operation,
        "userInfo": request.user.as_json(),
        "object": shown(new),
        "oldObject": shown(old),
        "dryRun": bool(request.query.get("dryRun")),
    }
    if request.subresource:
        question["subResource"] = request.subresource
    if request.namespace:
        question["namespace"] = request.namespace
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": question}


def _refusal(name: str, status: Json) -> ApiError:
    """Return what a client is told (k8s.io/apiserver, admission/plugin/webhook/errors)."""
    code = status.get("code")
    code = code if isinstance(code, int) and code >= 400 else 400
    message = f'admission webhook "{name}" denied the request'
    reason = status.get("message") or status.get("reason")
    return ApiError(
        code,
        str(status.get("reason") or ""),
        f"{message}: {reason}" if reason else f"{message} without explanation",
    )
