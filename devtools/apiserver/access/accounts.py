"""Tokens of ServiceAccounts: issued, written into Secrets, checked.

They are JWTs with the claims of the real server, signed with a key of this server (HS256).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

from devtools.apiserver.access.users import AUTHENTICATED, User
from devtools.apiserver.clock import utc_text
from devtools.apiserver.errors import ApiError, Json, invalid
from devtools.apiserver.objects.resources import ACCOUNT_NAME, ACCOUNT_TOKEN, SECRETS, SERVICE_ACCOUNTS
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.store import Store

ACCOUNT_UID = "kubernetes.io/service-account.uid"
ISSUER = "https://kubernetes.default.svc.cluster.local"
LEGACY_ISSUER = "kubernetes/serviceaccount"
_LEGACY = "kubernetes.io/serviceaccount"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Accounts:
    """The tokens of one server. `key` signs; `ca` is the text of the authority that goes into Secrets."""

    def __init__(self, store: Store, key: bytes, ca: str = "", *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._key, self._ca, self._clock = store, key, ca, clock

    # --- checking -----------------------------------------------------------------------------------------

    def authenticate(self, token: str) -> User | None:
        """Return whose token it is, None for one that is not ours, has expired or belongs to nobody any more."""
        try:
            signed, _, signature = token.rpartition(".")
            if not hmac.compare_digest(_decode(signature), self._sign(signed)):
                return None
            claims = json.loads(_decode(signed.split(".")[1]))
            if claims["iss"] == LEGACY_ISSUER:
                return self._legacy_user(claims, token)
            if self._clock() >= claims["exp"] or ISSUER not in claims["aud"]:
                return None
            about = claims["kubernetes.io"]
            return self._user(about["namespace"], **about["serviceaccount"], jti=claims["jti"])
        except (ValueError, KeyError, TypeError, IndexError, ApiError):
            return None

    def _legacy_user(self, claims: Json, token: str) -> User | None:
        """Return the user of a token that lives as long as the Secret that it was written into."""
        namespace = claims[f"{_LEGACY}/namespace"]
        secret = self._store.get(SECRETS, namespace, claims[f"{_LEGACY}/secret.name"]).obj
        kept = base64.b64decode((secret.get("data") or {}).get("token", ""))
        if not hmac.compare_digest(kept, token.encode()):
            return None
        name, uid = (claims[f"{_LEGACY}/service-account.{what}"] for what in ("name", "uid"))
        return self._user(namespace, name, uid)

    def _user(self, namespace: str, name: str, uid: str, jti: str = "") -> User | None:
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name)
        if account.obj["metadata"]["uid"] != uid:
            return None
        return User(
            name=f"system:serviceaccount:{namespace}:{name}",
            uid=uid,
            groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED),
            extra={"authentication.kubernetes.io/credential-id": [f"JTI={jti}"]} if jti else {},
        )

    # --- issuing ------------------------------------------------------------------------------------------

    def issue(
        self, namespace: str, name: str, seconds: float, audiences: tuple[str, ...] = (ISSUER,)
    ) -> tuple[str, str]:
        """Return a token that lasts some seconds, and when it ends. Raises ApiError 404 without the account."""
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name).obj["metadata"]
        now = int(self._clock())
        identity = hashlib.sha256(f"{account['uid']}{time.monotonic_ns()}".encode()).hexdigest()[:32]
        claims = {
            "aud": list(audiences),
            "exp": int(now + seconds),
            "iat": now,
            "iss": ISSUER,
            "jti": identity,
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": account["uid"]}},
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        return self._signed(claims), utc_text(now + seconds)

    def request(self, namespace: str, name: str, body: Any) -> Json:
        """Answer a TokenRequest. Raises ApiError 404 without the account, 422 for less than ten minutes."""
        spec = (body.get("spec") if isinstance(body, dict) else None) or {}
        seconds = spec.get("expirationSeconds", 3600)
        if not isinstance(seconds, int) or seconds < 600:
            why = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            raise invalid("TokenRequest.authentication.k8s.io", "", "spec.expirationSeconds", why)
        audiences = tuple(map(str, spec.get("audiences") or (ISSUER,)))
        token, end = self.issue(namespace, name, seconds, audiences)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"audiences": list(audiences), "expirationSeconds": seconds, "boundObjectRef": None},
            "status": {"token": token, "expirationTimestamp": end},
        }

    def complete(self, stored: Stored) -> None:
        """Write the token into a Secret of that type, as the token controller does; without an account it goes."""
        secret, (namespace, name) = stored.obj, stored.key
        meta = secret["metadata"]
        if secret.get("type") != ACCOUNT_TOKEN or "token" in (secret.get("data") or {}):
            return
        account = (meta.get("annotations") or {}).get(ACCOUNT_NAME, "")
        try:
            uid = self._store.get(SERVICE_ACCOUNTS, namespace, account).obj["metadata"]["uid"]
        except ApiError:
            self._store.delete(SECRETS, namespace, name)
            return
        claims = {"iss": LEGACY_ISSUER, "sub": f"system:serviceaccount:{namespace}:{account}"}
        claims |= {f"{_LEGACY}/namespace": namespace, f"{_LEGACY}/secret.name": name}
        claims |= {f"{_LEGACY}/service-account.name": account, f"{_LEGACY}/service-account.uid": uid}
        filled = {"token": self._signed(claims), "ca.crt": self._ca, "namespace": namespace}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in filled.items()}

        def change(old: Json) -> Json:
            annotations = {**(old["metadata"].get("annotations") or {}), ACCOUNT_UID: uid}
            return {
                **old,
                "data": {**(old.get("data") or {}), **data},
                "metadata": {**old["metadata"], "annotations": annotations},
            }

        self._store.update(SECRETS, namespace, name, change)

    def forget(self, account: Stored) -> None:
        """Delete the Secrets with tokens of an account that is gone, as the token controller does."""
        namespace, name = account.key
        for stored in self._store.select(SECRETS, namespace)[0]:
            annotations = stored.obj["metadata"].get("annotations") or {}
            if stored.obj.get("type") == ACCOUNT_TOKEN and annotations.get(ACCOUNT_NAME) == name:
                try:
                    self._store.delete(SECRETS, *stored.key)
                except ApiError as err:
                    if err.code != 404:
                        raise

    def _sign(self, text: str) -> bytes:
        return hmac.new(self._key, text.encode(), "sha256").digest()

    def _signed(self, claims: Json) -> str:
        parts = ({"alg": "HS256", "typ": "JWT"}, claims)
        text = ".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        return f"{text}.{_encode(self._sign(text))}"
