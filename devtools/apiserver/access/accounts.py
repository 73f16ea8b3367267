"""Tokens of ServiceAccounts: issued, written into Secrets, checked. Rights are not checked.

A token names its account, signed with a key of this server; it is good while the account with this uid is there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from devtools.apiserver.access.users import AUTHENTICATED, User
from devtools.apiserver.clock import utc_text
from devtools.apiserver.errors import ApiError, Json, bad_request
from devtools.apiserver.objects.resources import ACCOUNT_NAME, ACCOUNT_TOKEN, SECRETS, SERVICE_ACCOUNTS
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import Store

_REVIEWS = {
    ("authentication.k8s.io", "tokenreviews"): "TokenReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
}


class Accounts:
    """The tokens of one server. `key` signs; `ca` is the text of the authority that goes into Secrets."""

    def __init__(self, store: Store, key: bytes, ca: str = "") -> None:
        self._store, self._key, self._ca = store, key, ca

    def authenticate(self, token: str) -> User | None:
        """Return whose token it is, None for one that is not ours or belongs to no account any more."""
        text, _, signature = token.rpartition(".")
        if not token.isascii() or not hmac.compare_digest(signature, self._sign(text)):
            return None
        namespace, name, uid = json.loads(base64.urlsafe_b64decode(text))
        try:
            if self._uid(namespace, name) != uid:
                return None
        except ApiError:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return User(name=f"system:serviceaccount:{namespace}:{name}", uid=uid, groups=groups)

    def issue(self, namespace: str, name: str) -> str:
        """Return a token. Raises ApiError 404 without the account."""
        identity = [namespace, name, self._uid(namespace, name)]
        text = base64.urlsafe_b64encode(json.dumps(identity).encode()).decode()
        return f"{text}.{self._sign(text)}"

    def request(self, namespace: str, name: str, body: Any) -> Json:
        """Answer a TokenRequest. Raises ApiError 404 without the account."""
        spec = (body.get("spec") if isinstance(body, dict) else None) or {}
        end = utc_text(time.time() + spec.get("expirationSeconds", 3600))
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
            "status": {"token": self.issue(namespace, name), "expirationTimestamp": end},
        }

    def review(self, steps: list[str], body: Any) -> Json | None:
        """Answer a TokenReview; say of every access that it is allowed. None for another path, in steps."""
        kind = _REVIEWS.get((steps[1], steps[3])) if len(steps) == 4 else None
        if kind is None:
            return None
        spec = body.get("spec") if isinstance(body, dict) else None
        if not isinstance(spec, dict):
            raise bad_request("a review needs a spec")
        status: Json = {"allowed": True}
        if kind == "TokenReview":
            user = self.authenticate(str(spec.get("token", "")))
            status = {"authenticated": True, "user": user.as_json()} if user else {"error": "invalid bearer token"}
        return {"kind": kind, "apiVersion": f"{steps[1]}/v1", "metadata": {}, "spec": spec, "status": status}

    def complete(self, stored: Stored) -> None:
        """Write the token into a Secret of that type, as the token controller does; without an account it goes."""
        secret, (namespace, name) = stored.obj, stored.key
        if secret.get("type") != ACCOUNT_TOKEN or "token" in (secret.get("data") or {}):
            return
        try:
            token = self.issue(namespace, (secret["metadata"].get("annotations") or {}).get(ACCOUNT_NAME, ""))
        except ApiError:
            self._store.delete(SECRETS, namespace, name)
            return
        filled = {"token": token, "ca.crt": self._ca, "namespace": namespace}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in filled.items()}
        self._store.update(SECRETS, namespace, name, lambda old: merge_patch(old, {"data": data}))

    def forget(self, account: Stored) -> None:
        """Delete the Secrets with tokens of an account that is gone, as the token controller does."""
        namespace, name = account.key
        with self._store.lock:  # so that no other request deletes a Secret meanwhile
            for stored in self._store.select(SECRETS, namespace)[0]:
                annotations = stored.obj["metadata"].get("annotations") or {}
                if stored.obj.get("type") == ACCOUNT_TOKEN and annotations.get(ACCOUNT_NAME) == name:
                    self._store.delete(SECRETS, *stored.key)

    def _uid(self, namespace: str, name: str) -> str:
        return str(self._store.get(SERVICE_ACCOUNTS, namespace, name).obj["metadata"]["uid"])

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
