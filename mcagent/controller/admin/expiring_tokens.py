"""Tokens of members that expire, on the leader: the anchor, tokens bound to it, and the right to renew them.

Owns the Role by which a member's account requests tokens of its own. It is created only where the admission policy
is in force that limits these requests (`deploy/admission-policies.yaml`). No token is in a message.
"""

from __future__ import annotations

import base64
import re
import secrets

from mcagent.controller.admin.cluster import AdminError, Cluster, check_name, made_by_command
from mcagent.controller.admin.fields import name_of, texts_at
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.member_tokens import (
    ALPHABET,
    RANDOM,
    anchor_name,
    claims_of,
    longest_life,
    token_request,
)
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

POLICY = "membertokens.mcagent.io"
RENEW = "renew-token"  # a verb of ServiceAccounts that only this Role grants: by it the policy knows members
NEVER = "never"
SHORTEST, LONGEST = 3600, 366 * 86400  # seconds
DEFAULT = 90 * 86400  # seconds
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "rbac.authorization.k8s.io"
_UNITS = {"m": 60, "h": 3600, "d": 86400}


def lifetime(text: str) -> int | None:
    """Return the life of a token in seconds; None: it does not expire. Raises InputError."""
    if text == NEVER:
        return None
    number = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = int(number[1]) * _UNITS[number[2]] if number is not None else 0
    if not SHORTEST <= seconds <= LONGEST:
        raise InputError("--expires", "", f'must be a time from 1h to 366d such as 90d or 36h, or never: "{text}"')
    return seconds


def default_lifetime(cluster: Cluster) -> int | None:
    """Return DEFAULT where the admission policy is in force, else None: such a leader has tokens as before."""
    if _is_enforced(cluster):
        return DEFAULT
    cluster.report(
        f"the token does not expire: the ValidatingAdmissionPolicy {POLICY} is not in force here "
        "(deploy/admission-policies.yaml)"
    )
    return None


def _is_enforced(cluster: Cluster) -> bool:
    policy = cluster.find_any(f"{_ADMISSION}/validatingadmissionpolicies/{POLICY}")
    binding = cluster.find_any(f"{_ADMISSION}/validatingadmissionpolicybindings/{POLICY}")
    return policy is not None and "Deny" in texts_at(binding or {}, "spec", "validationActions")


def check_enforced(cluster: Cluster) -> None:
    """Raise AdminError if the admission policy of members' TokenRequests is not in force."""
    if not _is_enforced(cluster):
        raise AdminError(
            f"the ValidatingAdmissionPolicy {POLICY} is not in force here, without which a stolen token could be "
            "renewed for ever: kubectl apply -f deploy/admission-policies.yaml, or helm upgrade; or create "
            "a token that does not expire: --expires never"
        )


def create_anchor(cluster: Cluster, namespace: str, account: str, seconds: int) -> str:
    """Create an anchor, and return its name. Raises McagentError."""
    anchor = anchor_name(account, seconds, "".join(secrets.choice(ALPHABET) for _ in range(RANDOM)))
    cluster.create(Kind.SECRET, namespace, check_name(anchor, "NAME"), {"type": "Opaque"})
    return anchor


def let_renew(cluster: Cluster, namespace: str, account: str) -> None:
    """Let a member's account request tokens of itself, within the admission policy. Raises SourceError."""
    name = renewal_role(account)
    rules = [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": [account],
            "verbs": ["create"],
        },
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [account], "verbs": [RENEW]},
    ]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    role_ref = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    for kind, content in (
        (Kind.ROLE, {"rules": rules}),
        (Kind.ROLE_BINDING, {"roleRef": role_ref, "subjects": [subject]}),
    ):
        if cluster.get(kind, namespace, name) is None:
            cluster.create(kind, namespace, name, content)


def renewal_role(account: str) -> str:
    """Return the name of Role and RoleBinding of `let_renew`."""
    return f"{account}.token"


def anchors(cluster: Cluster, namespace: str, account: str) -> list[str]:
    """Return the anchors of an account, the newest last. Raises SourceError."""
    items = cluster.objects(Kind.SECRET, namespace)
    own = [item for item in items if longest_life(account, name_of(item)) and made_by_command(item)]
    return [
        name_of(item) for item in sorted(own, key=lambda item: item["metadata"].get("creationTimestamp") or "")
    ]


def request(cluster: Cluster, namespace: str, account: str, anchor: str) -> RawObject:
    """Return a Secret for the member, with a new token that is bound to the anchor. Raises McagentError."""
    ca = cluster.get(Kind.CONFIG_MAP, namespace, "kube-root-ca.crt")
    authority = ((ca or {}).get("data") or {}).get("ca.crt")
    if not authority:
        raise AdminError(f"there is no ConfigMap {namespace}/kube-root-ca.crt: does kube-controller-manager run?")
    seconds = longest_life(account, anchor) or 0
    path = object_path(Kind.SERVICE_ACCOUNT, namespace, account) + "/token"
    status = cluster.request("POST", path, token_request(anchor, seconds))["status"]
    claims = claims_of(status["token"])
    if claims is None or not claims.anchor:
        raise AdminError("the API server's token names no Secret to which it is bound: --expires never")
    cluster.report(
        f"the token expires at {time_text(claims.expires)}, and mcagent's controller in the member renews it from "
        f"{time_text(claims.renewal)} on; for members of Antrea, which do not: --expires never"
    )
    if claims.expires - claims.issued < seconds:
        cluster.report(
            f"this API server gives tokens for {claims.expires - claims.issued:g} s only, not {seconds} s"
        )
    encoded = {"token": status["token"], "ca.crt": authority, "namespace": namespace}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in encoded.items()}
    return {"metadata": {"name": account}, "data": data}
