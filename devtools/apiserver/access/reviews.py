"""TokenReview, SubjectAccessReview and SelfSubjectAccessReview: whose a token is, who may what. Stored nowhere.

Reference: authentication.k8s.io/v1 and authorization.k8s.io/v1. No `spec.audiences` but the server's.
"""

from __future__ import annotations

from typing import Any

from devtools.apiserver.access.accounts import Accounts
from devtools.apiserver.access.authorize import Attributes, Authorizer
from devtools.apiserver.access.users import User
from devtools.apiserver.errors import ApiError, Json, bad_request

_SELF = "SelfSubjectAccessReview"
_KINDS = {
    ("authentication.k8s.io", "tokenreviews"): "TokenReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): _SELF,
}


def is_review(steps: list[str]) -> bool:
    """Tell whether a path, in steps, is that of reviews."""
    return len(steps) == 4 and (steps[0], steps[2]) == ("apis", "v1") and (steps[1], steps[3]) in _KINDS


def review(accounts: Accounts, authorizer: Authorizer, user: User, steps: list[str], body: Any) -> Json:
    """Answer a review. Raises ApiError 400, 403."""
    group, plural = steps[1], steps[3]
    if _KINDS[group, plural] != _SELF:  # every authenticated user may (ClusterRole system:basic-user)
        authorizer.check(user, Attributes(verb="create", group=group, resource=plural))
    spec = body.get("spec") if isinstance(body, dict) else None
    if not isinstance(spec, dict):
        raise bad_request("a review needs a spec")
    kind = _KINDS[group, plural]
    if kind == "TokenReview":
        status = _token(accounts, spec)
    else:
        status = _access(authorizer, _user_of(spec) if kind != _SELF else user, spec)
    return {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}, "spec": spec, "status": status}


def _token(accounts: Accounts, spec: Json) -> Json:
    found = accounts.authenticate(str(spec.get("token", "")))
    if found is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": found.as_json()}


def _user_of(spec: Json) -> User:
    return User(name=str(spec.get("user", "")), groups=tuple(map(str, spec.get("groups") or ())))


def _access(authorizer: Authorizer, user: User, spec: Json) -> Json:
    path, resource = spec.get("nonResourceAttributes"), spec.get("resourceAttributes")
    try:
        if isinstance(path, dict):
            authorizer.check_path(user, str(path.get("verb", "")), str(path.get("path", "")))
        elif isinstance(resource, dict):
            fields = {
                name: str(resource.get(name, "")) for name in ("verb", "group", "resource", "namespace", "name")
            }
            authorizer.check(user, Attributes(**fields))
        else:
            raise bad_request("a SubjectAccessReview needs resourceAttributes or nonResourceAttributes")
    except ApiError as refusal:
        if refusal.code != 403:
            raise
        return {"allowed": False}
    return {"allowed": True}
