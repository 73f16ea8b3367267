"""Users, and the tokens of ServiceAccounts: issued, written into Secrets, recognized. Rights are not checked.

A token consists of namespace, name and uid of its account, without a signature; it is good while the account with
this uid exists.
"""

from __future__ import annotations

import base64
import time
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
        namespace, _, identity = token.partition("/")
        name, _, uid = identity.partition("/")
        account = self._store.find(SERVICE_ACCOUNTS, namespace, name)
        if account is None or account.obj["metadata"]["uid"] != uid:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return User(name=f"system:serviceaccount:{namespace}:{name}", uid=uid, groups=groups)

    def issue(self, namespace: str, name: str) -> str:
        """Return a token. Raises ApiError 404 without the account."""
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name)
        return f"{namespace}/{name}/{account.obj['metadata']['uid']}"

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
