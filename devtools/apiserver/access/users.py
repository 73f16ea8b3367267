"""Who makes a request. A value, and the users that are always there."""

from __future__ import annotations

from dataclasses import dataclass

from devtools.apiserver.errors import Json

MASTERS = "system:masters"  # the group that may do everything
AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who makes a request (authentication.k8s.io/v1 UserInfo)."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()

    def as_json(self) -> Json:
        """Return the user as AdmissionReview and SelfSubjectReview have it."""
        told: Json = {"username": self.name, "groups": list(self.groups)}
        return told | ({"uid": self.uid} if self.uid else {})


ADMIN = User(name="admin", groups=(MASTERS, AUTHENTICATED))
