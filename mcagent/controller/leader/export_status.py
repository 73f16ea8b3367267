"""What the leader writes about one ResourceExport: its status, and its finalizers once it is on its way out.

Pure. Conditions and words are those of Antrea's leader, so that its members read them: Succeeded/True or
Failure/False comes first, with the reason ConvergeFailure or one of our own. The message names the field and the
other cluster. Beside Succeeded there is KEP-1645's Conflict/True while the clusters' exports say different things.
"""

from __future__ import annotations

from mcagent.controller.contract.antrea_before_2_7 import EXPORT_FINALIZERS
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.leader.definition import Conflict
from mcagent.controller.machinery.reconciler import Ref, Wanted
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind

CONFLICT = "ConvergeFailure"  # the reason that Antrea's leader gives for all
FAILED = "ResourceExport can't be converged to ResourceImport"


def export_ref(raw: RawObject) -> Ref:
    """Return the name of an export that is there."""
    meta = raw["metadata"]
    return Ref(kind=Kind.RESOURCE_EXPORT, namespace=str(meta.get("namespace", "")), name=str(meta["name"]))


def succeeded(raw: RawObject, now: float, message: str = "", conflict: Conflict | None = None) -> Wanted:
    """Return the status of an export that is taken over; `message` says what of it is not."""
    conditions = [_condition(raw, "Succeeded", TRUE, message=message, now=now)]
    if conflict is not None:
        told = {"reason": conflict.reason, "message": conflict.message}
        conditions.append(_condition(raw, "Conflict", TRUE, **told, now=now))
    return _status(raw, conditions)


def failed(raw: RawObject, why: str, now: float, reason: str = CONFLICT) -> Wanted:
    """Return the status of an export that is not taken over, and why."""
    return _status(raw, [_condition(raw, "Failure", FALSE, reason=reason, message=f"{FAILED}: {why}", now=now)])


def reason_of(error: InputError) -> str:
    """Return what is wrong with an export, without its name."""
    return f"{error.path}: {error.reason}" if error.path else error.reason


def _condition(raw: RawObject, kind: str, status: str, *, reason: str = "", message: str, now: float) -> RawObject:
    found = raw.get("status")
    before = found.get("conditions") if isinstance(found, dict) else None
    return condition(before, kind, status, reason=reason, message=message, now=now)


def _status(raw: RawObject, conditions: list[RawObject]) -> Wanted:
    return Wanted(ref=export_ref(raw), status={"conditions": conditions}, create=False)


def released(raw: RawObject) -> Wanted | None:
    """Return an export that is being deleted without our finalizers, the legacy one too; None if it has none."""
    held = raw["metadata"].get("finalizers")
    if not isinstance(held, list) or not any(f in EXPORT_FINALIZERS for f in held if isinstance(f, str)):
        return None
    rest = [f for f in held if f not in EXPORT_FINALIZERS]
    return Wanted(ref=export_ref(raw), body={"metadata": {"finalizers": rest or None}}, create=False)
