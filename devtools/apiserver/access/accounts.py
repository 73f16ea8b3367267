"""Users, and the tokens of ServiceAccounts: issued, written into Secrets, recognized. Rights are not checked.

A token of a Secret consists of namespace, name and uid of its account, one of a TokenRequest is a JWT with the
claims of Kubernetes, both without a signature. It is good while the account with this uid exists, until its end,
and while the Secret exists to which it is bound.
"""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.objects.resources import ACCOUNT_NAME, ACCOUNT_TOKEN, SECRETS, SERVICE_ACCOUNTS
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.lifecycle import utc_text
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import Store

MASTERS = "system:masters"  # the group of administrators
AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who makes a request (authentication.k8s.io/v1 UserInfo)."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()

    def as_json(self) -> Json:
        """Return the user as an AdmissionReview has it."""
        info: Json = {"username": self.name, "groups": list(self.groups)}
        return info | ({"uid": self.uid} if self.uid else {})


ADMIN = User(name="admin", groups=(MASTERS, AUTHENTICATED))


class Accounts:
    """The tokens of one server. `ca` is the text of the authority that goes into Secrets."""

    def __init__(self, store: Store, ca: str = "") -> None:
        self._store, self._ca = store, ca

    def authenticate(self, token: str) -> User | None:
        """Return whose token it is, None for one that belongs to no account."""
        if token.count(".") == 2 and "/" not in token:
            return self._of_claims(_claims(token))
        namespace, _, identity = token.partition("/")
        name, _, uid = identity.partition("/")
        return self._user(namespace, name, uid)

    def _of_claims(self, claims: Json) -> User | None:
        bound = claims.get("kubernetes.io") or {}
        namespace, account, secret = (
            bound.get("namespace", ""),
            bound.get("serviceaccount") or {},
            bound.get("secret"),
        )
        if claims.get("exp", 0.0) <= time.time() or (secret and not self._exists(namespace, secret)):
            return None
        return self._user(namespace, account.get("name", ""), account.get("uid", ""))

    def _exists(self, namespace: str, secret: Json) -> bool:
        stored = self._store.find(SECRETS, namespace, secret["name"])
        return stored is not None and stored.obj["metadata"]["uid"] == secret["uid"]

    def _user(self, namespace: str, name: str, uid: str) -> User | None:
        account = self._store.find(SERVICE_ACCOUNTS, namespace, name)
        if account is None or account.obj["metadata"]["uid"] != uid:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return User(name=f"system:serviceaccount:{namespace}:{name}", uid=uid, groups=groups)

    def issue(self, namespace: str, name: str) -> str:
        """Return a token without an end. Raises ApiError 404 without the account."""
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name)
        return f"{namespace}/{name}/{account.obj['metadata']['uid']}"

    def request(self, namespace: str, name: str, body: Any) -> Json:
        """Answer a TokenRequest. Raises ApiError 404 without the account, or the Secret of `boundObjectRef`."""
        spec = (body.get("spec") if isinstance(body, dict) else None) or {}
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name)
        bound: Json = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": account.obj["metadata"]["uid"]},
        }
        reference = spec.get("boundObjectRef") or {}
        if reference.get("kind") == "Secret":
            secret = self._store.get(SECRETS, namespace, reference.get("name", "")).obj["metadata"]
            bound["secret"] = {"name": secret["name"], "uid": secret["uid"]}
        now = int(time.time())
        end = now + int(spec.get("expirationSeconds", 3600))
        subject = f"system:serviceaccount:{namespace}:{name}"
        claims = {"sub": subject, "iat": now, "nbf": now, "exp": end, "kubernetes.io": bound}
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
            "status": {"token": _jwt(claims), "expirationTimestamp": utc_text(end)},
        }

    def complete(self, stored: Stored) -> None:
        """Write the token into a Secret of that type, as the token controller does; without an account it goes."""
        secret, (namespace, name) = stored.obj, stored.key
        if secret.get("type") != ACCOUNT_TOKEN:
            return
        try:
            token = self.issue(namespace, (secret["metadata"].get("annotations") or {}).get(ACCOUNT_NAME, ""))
        except ApiError:
            self._store.delete(SECRETS, namespace, name)
            return
        texts = {"token": token, "ca.crt": self._ca, "namespace": namespace}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        self._store.update(SECRETS, namespace, name, lambda old: merge_patch(old, {"data": data}))


def _jwt(claims: Json) -> str:
    """Return claims as a token (RFC 7519) whose signature is nothing."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "none"])


def _claims(token: str) -> Json:
    payload = token.split(".")[1]
    with suppress(ValueError):
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return claims if isinstance(claims, dict) else {}
    return {}
