"""What the leader writes to a ResourceExport: its status, and its finalizers once it is being deleted. Pure.

Condition types and texts are those of Antrea's leader, so that Antrea's members read them: Succeeded/True or
Failure/False comes first, with the reason ConvergeFailure or one of mcagent's. The message names the field and the
other cluster. KEP-1645's Conflict/True follows Succeeded while the exports of several clusters differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.controller.contract.antrea_before_2_7 import EXPORT_FINALIZERS
from mcagent.controller.contract.conditions import FALSE, TRUE, by_type, condition
from mcagent.controller.machinery.reconciler import Ref, Wanted
from mcagent.model.api.base import Condition
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.errors import InputError

CONFLICT = "ConvergeFailure"  # the only reason that Antrea's leader uses
_TYPES = ("Succeeded", "Failure", "Conflict")
FAILED = "ResourceExport can't be converged to ResourceImport"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """KEP-1645's condition Conflict, status True: its reason, and a message that names what differs."""

    reason: str
    message: str


def succeeded(export: ResourceExport, now: float, message: str = "", conflict: Conflict | None = None) -> Wanted:
    """Return the status of an export that is merged; `message` names the parts of it that are left out."""
    conditions = [_condition(export, "Succeeded", TRUE, message=message, now=now)]
    if conflict is not None:
        conditions.append(
            _condition(export, "Conflict", TRUE, reason=conflict.reason, message=conflict.message, now=now)
        )
    return _status(export, conditions)


def failed(export: ResourceExport, why: str, now: float, reason: str = CONFLICT) -> Wanted:
    """Return the status of an export that is not merged; `why` goes into the message."""
    message = f"{FAILED}: {why}"
    return _status(export, [_condition(export, "Failure", FALSE, reason=reason, message=message, now=now)])


def reason_of(error: InputError) -> str:
    """Return the field and the reason of an error, without the object's name."""
    return f"{error.path}: {error.reason}" if error.path else error.reason


def _condition(
    export: ResourceExport, kind: str, status: str, *, reason: str = "", message: str, now: float
) -> Condition:
    return condition(export.status.conditions, kind, status, reason=reason, message=message, now=now)


def _status(export: ResourceExport, conditions: list[Condition]) -> Wanted:
    return Wanted(ref=Ref.of(export), conditions=by_type(conditions, _TYPES), create=False)


def released(export: ResourceExport) -> list[Wanted]:
    """Return the write that removes EXPORT_FINALIZERS from an export that is being deleted; [] if it has none."""
    finalizers = export.metadata.finalizers
    foreign = [finalizer for finalizer in finalizers if finalizer not in EXPORT_FINALIZERS]
    if len(foreign) == len(finalizers):
        return []
    body = patch(ResourceExport, metadata=metadata_patch(finalizers=foreign))
    return [Wanted(ref=Ref.of(export), body=body, create=False)]
