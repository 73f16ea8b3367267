"""Request, look-ups and decision of an admission review. Pure values; `controller.webhook` serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from mcagent.controller.admission.accounts import ACCOUNT, Caller, caller_of
from mcagent.controller.machinery.reconciler import Object
from mcagent.controller.settings import MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.admission import AdmissionRequest, NamedObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce, ResourceImport
from mcagent.model.parsing.decode import read_as, read_part


class Operation(StrEnum):
    """What a request does with an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """The answer. `code` is an HTTP status; `patch` a JSON patch (RFC 6902) of a mutating review."""

    allowed: bool
    code: int = 200
    message: str = ""
    patch: Sequence[Mapping[str, object]] = ()


ALLOWED = AdmissionDecision(allowed=True)


def denied(message: str, code: int = 403) -> AdmissionDecision:
    """Return a refusal. Codes: 403, the caller may not; 412, present objects forbid it; 400, invalid request."""
    return AdmissionDecision(allowed=False, code=code, message=message)


class Lookup(Protocol):
    """The look-ups of a review, in its own cluster. They are up to date: an account may be one second old."""

    def service_account(self, namespace: str, name: str) -> ServiceAccount | None:
        """Return a ServiceAccount, None if there is none."""

    def service_accounts(self, namespace: str) -> Sequence[ServiceAccount]:
        """Return all ServiceAccounts of a namespace."""

    def cluster_sets(self, namespace: str) -> Sequence[ClusterSet]:
        """Return all ClusterSets of a namespace."""

    @property
    def limits(self) -> MemberLimits:
        """Return the limits of members whose ServiceAccounts have no annotations."""

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        """Return the number of a member's ResourceExports of a kind, with those that are being deleted."""

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[ResourceImport]:
        """Return the ResourceImports with one of these values in `cidr_claims.GRANTED`, as far as known."""

    def announces(self, namespace: str) -> Sequence[MemberClusterAnnounce]:
        """Return all MemberClusterAnnounces of a namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """The fields of an AdmissionRequest (admission.k8s.io/v1) that are read. Missing objects are {}."""

    operation: Operation
    kind: str
    namespace: str
    user: str
    caller: Caller | None  # None: not a ServiceAccount
    object: RawObject = field(default_factory=dict)
    old: RawObject = field(default_factory=dict)

    @property
    def subject(self) -> RawObject:
        """Return the reviewed object: the new one, for DELETE the old one."""
        return self.old if self.operation is Operation.DELETE else self.object

    def of(self, cls: type[Object]) -> tuple[Object, Object]:
        """Return the old and the new object; a missing one is empty."""
        return read_as(cls, self.old), read_as(cls, self.object)


def read_request(raw: Mapping[str, object]) -> ReviewRequest | None:
    """Return the request of an AdmissionReview; None for an operation that is not reviewed (CONNECT)."""
    request = read_part(AdmissionRequest, raw)
    if request.operation not in Operation.__members__.values():
        return None
    new, old = (raw.get(name) for name in ("object", "oldObject"))
    new, old = (value if isinstance(value, dict) else {} for value in (new, old))
    about, user = read_as(NamedObject, new or old), request.user_info.username
    return ReviewRequest(
        operation=Operation(request.operation),
        kind=request.kind.kind or about.kind,
        namespace=request.namespace or about.namespace,
        user=user,
        caller=caller_of(user),
        object=new,
        old=old,
    )


def no_account(request: ReviewRequest) -> AdmissionDecision:
    """Return the refusal of a caller that is not a ServiceAccount."""
    return denied(
        f'the user is "{request.user}", and must be a ServiceAccount: {ACCOUNT}<namespace>:<name>', code=400
    )


def changed_parts(old: RawObject, new: RawObject) -> set[str]:
    """Return the fields that an update changes: "spec", "metadata.labels" and the like.

    Without the fields that only the API server writes, and without the status, which is a subresource.
    """
    before, after = _parts(old), _parts(new)
    return {
        name for name in before.keys() | after.keys() if (before.get(name) or None) != (after.get(name) or None)
    }


_SERVERS = frozenset({"managedFields", "generation", "resourceVersion"})


def _parts(raw: RawObject) -> dict[str, object]:
    meta = raw.get("metadata")
    parts: dict[str, object] = {name: value for name, value in raw.items() if name not in ("metadata", "status")}
    if isinstance(meta, Mapping):
        parts |= {f"metadata.{name}": value for name, value in meta.items() if name not in _SERVERS}
    return parts


HOUSEKEEPING = frozenset({"metadata.finalizers", "metadata.ownerReferences"})
"""Fields that the garbage collector changes, and administrators, of objects whose deletion is blocked."""
