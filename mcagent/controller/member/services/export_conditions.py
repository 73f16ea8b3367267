"""The conditions of a ServiceExport, with KEP-1645's types and reasons: Valid, Ready and Conflict. Pure.

Valid is this cluster's word, Ready and Conflict repeat the leader's about the two ResourceExports. Conditions of
others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, TRUE, condition, find
from mcagent.controller.contract.raw import items_at, name_of, namespace_of, text_at, value_at
from mcagent.controller.machinery.reconciler import Ref, Side, View, Wanted
from mcagent.kube.source import RawObject
from mcagent.model.field import printable
from mcagent.model.objects import Kind

VALID, NO_SERVICE, INVALID_TYPE = "Valid", "NoService", "InvalidServiceType"
_TYPES = ("Valid", "Ready", "Conflict")
_SHOWN = 512  # characters of a leader's message that are passed on


def export_status(
    export: RawObject, refusal: tuple[str, str] | None, message: str, told: Sequence[RawObject], now: float
) -> Wanted:
    """Return the status of a ServiceExport. `refusal`: reason and message if nothing is exported.

    `told` are the conditions Ready and Conflict, as far as something is known.
    """
    before = items_at(export, "status", "conditions")
    reason, why = refusal or (VALID, message)
    valid = condition(before, "Valid", FALSE if refusal else TRUE, reason=reason, message=why, now=now)
    if refusal:
        told = [condition(before, "Ready", FALSE, reason="Failed", message=why, now=now)]
    generation = value_at(export, "metadata", "generation")
    # metav1.Condition requires a message, empty or not
    ours = [
        {"message": ""} | found | ({"observedGeneration": generation} if isinstance(generation, int) else {})
        for found in (valid, *told)
    ]
    others = [item for item in before if text_at(item, "type") not in _TYPES]
    ref = Ref(kind=Kind.SERVICE_EXPORT, namespace=namespace_of(export), name=name_of(export))
    return Wanted(ref=ref, status={"conditions": [*ours, *others]}, create=False)


def told_by_leader(
    export: RawObject, there: Iterable[RawObject | None], spec: RawObject, view: View, now: float
) -> list[RawObject]:
    """Return Ready and Conflict by what the leader says of the two ResourceExports.

    Conflict is left out while it says nothing. `spec` is what is exported of the Service.
    """
    before = items_at(export, "status", "conditions")
    taken, conflict = False, {}
    for raw in there:
        conditions = items_at(raw, "status", "conditions")
        if failure := find(conditions, "Failure"):
            message = printable(text_at(failure, "message"), _SHOWN)
            reason = _conflict_reason(failure, spec, view, export)
            return [
                condition(before, "Ready", FALSE, reason="Failed", message=message, now=now),
                condition(before, "Conflict", TRUE, reason=reason, message=message, now=now),
            ]
        if (found := find(conditions, "Conflict")) and text_at(found, "status") == TRUE:
            reason, message = _word(found), printable(text_at(found, "message"), _SHOWN)
            conflict = condition(before, "Conflict", TRUE, reason=reason, message=message, now=now)
        taken = taken or text_at(find(conditions, "Succeeded"), "status") == TRUE
    if not taken:
        why = "the leader has not processed it yet"
        return [condition(before, "Ready", FALSE, reason="Pending", message=why, now=now)]
    return [
        condition(before, "Ready", TRUE, reason="Exported", now=now),
        conflict or condition(before, "Conflict", FALSE, reason="NoConflicts", now=now),
    ]


def _conflict_reason(failure: Mapping[str, object], spec: RawObject, view: View, export: RawObject) -> str:
    """Return KEP-1645's word where ports differ from those of the first export; else the leader's own."""
    name = names.service_import(namespace_of(export), name_of(export))
    area = view.leader.namespace if view.leader is not None else ""
    ref = Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
    ours = _port_set(items_at(spec, "ports"))
    theirs = _port_set(items_at(view.get(ref), "spec", "serviceImport", "spec", "ports"))
    return "PortConflict" if theirs and ours != theirs else _word(failure)


def _word(condition_of_leader: Mapping[str, object]) -> str:
    """Return a reason as the leader gives it, if it can be one."""
    reason = text_at(condition_of_leader, "reason")
    return reason if reason.isascii() and reason.isidentifier() and len(reason) <= 64 else "ConvergeFailure"


def _port_set(ports: Iterable[RawObject]) -> frozenset[tuple[str, str, object]]:
    return frozenset((text_at(p, "name"), text_at(p, "protocol") or "TCP", p.get("port")) for p in ports)
