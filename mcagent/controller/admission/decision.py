"""What an admission review is asked, may look up, and answers. Pure values; `controller.webhook` serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from mcagent.controller.raw import text_at
from mcagent.kube.source import RawObject

_ACCOUNT = "system:serviceaccount:"


class Operation(StrEnum):
    """What somebody wants to do with an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer. `code` is an HTTP status; `patch` a JSON patch (RFC 6902) of a mutating review."""

    allowed: bool
    code: int = 200
    message: str = ""
    patch: Sequence[Mapping[str, Any]] = ()


ALLOWED = Decision(allowed=True)


def denied(message: str, code: int = 403) -> Decision:
    """Return a refusal: 403 who may not, 412 what is there forbids it, 400 it cannot be understood."""
    return Decision(allowed=False, code=code, message=message)


class Lookup(Protocol):
    """What a review may look up in the cluster that it runs in. Fresh: an account may be a second old."""

    def service_account(self, namespace: str, name: str) -> RawObject | None:
        """Return a ServiceAccount, None if there is none."""
        ...

    def service_accounts(self, namespace: str) -> Sequence[RawObject]:
        """Return all ServiceAccounts of a namespace."""
        ...

    def cluster_sets(self, namespace: str) -> Sequence[RawObject]:
        """Return all ClusterSets of a namespace."""
        ...

    def announces(self, namespace: str) -> Sequence[RawObject]:
        """Return all MemberClusterAnnounces of a namespace."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The names of ServiceAccounts that are the ClusterSet's own: Antrea's and ours."""

    controllers: frozenset[str] = frozenset({"antrea-mc-controller", "mcagent-controller"})
    agents: frozenset[str] = frozenset({"antrea-agent", "mcagent-agent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A ServiceAccount that makes a request."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An AdmissionRequest (admission.k8s.io/v1), of which only this is read. Missing objects are {}."""

    operation: Operation
    kind: str
    namespace: str
    user: str
    caller: Caller | None  # None: no ServiceAccount
    object: RawObject = field(default_factory=dict)
    old: RawObject = field(default_factory=dict)

    @property
    def subject(self) -> RawObject:
        """Return the object that it is about: the new one, for DELETE the old one."""
        return self.old if self.operation is Operation.DELETE else self.object


def read_request(raw: Mapping[str, Any]) -> Request | None:
    """Return the request of an AdmissionReview; None for an operation that is not reviewed (CONNECT)."""
    operation = text_at(raw, "operation")
    if operation not in Operation.__members__.values():
        return None
    new, old = (raw.get(name) for name in ("object", "oldObject"))
    new, old = (value if isinstance(value, dict) else {} for value in (new, old))
    user = text_at(raw, "userInfo", "username")
    namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
    is_account = user.startswith(_ACCOUNT) and bool(namespace) and bool(name) and ":" not in name
    return Request(
        operation=Operation(operation),
        kind=text_at(raw, "kind", "kind") or text_at(new or old, "kind"),
        namespace=text_at(raw, "namespace") or text_at(new or old, "metadata", "namespace"),
        user=user,
        caller=Caller(namespace=namespace, name=name) if is_account else None,
        object=new,
        old=old,
    )


def no_account(request: Request) -> Decision:
    """Return the refusal of a caller that is no ServiceAccount."""
    return denied(
        f'the user is "{request.user}", and must be a ServiceAccount: {_ACCOUNT}<namespace>:<name>', code=400
    )
