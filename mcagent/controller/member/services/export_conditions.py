"""The conditions of a ServiceExport, with KEP-1645's types and reasons: Valid, Ready and Conflict. Pure.

This cluster decides Valid; Ready and Conflict repeat the leader's conditions of the two ResourceExports. Ready is
False, too, while a port of the Service has no usable endpoint here.
Conditions of other types stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, TRUE, by_type, condition
from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.controller.member.membership import import_ref
from mcagent.model.api.base import Condition, condition_of
from mcagent.model.api.kubernetes import ApiServicePort
from mcagent.model.api.multicluster import ApiServiceExport, ResourceExport, ResourceImport
from mcagent.model.api.patches import patch
from mcagent.model.parsing.clusters import ADDRESS_CONDITION
from mcagent.model.parsing.field import printable

VALID, NO_SERVICE, INVALID_TYPE = "Valid", "NoService", "InvalidServiceType"
NO_CLUSTER_SET, NO_ENDPOINT = "NoClusterSet", "NoUsableEndpoint"
_TYPES = ("Valid", "Ready", "Conflict", ADDRESS_CONDITION)
_SHOWN = 512  # characters of a leader's message that are copied


def export_status(
    export: ApiServiceExport,
    refusal: tuple[str, str] | None,
    message: str,
    conditions: Sequence[Condition],
    now: float,
    *,
    address: str = "",
) -> Wanted:
    """Return the status of a ServiceExport.

    `refusal`: reason and message if nothing is exported. `conditions`: Ready and Conflict (`leaders_conditions`).
    `address`: the Service's export address; agents read it from the condition's message, which users cannot write.
    """
    before = export.status.conditions
    reason, why = refusal or (VALID, message)
    valid = condition(before, "Valid", FALSE if refusal else TRUE, reason=reason, message=why, now=now)
    if refusal:
        conditions = [condition(before, "Ready", FALSE, reason="Failed", message=why, now=now)]
    elif address:
        assigned = condition(before, ADDRESS_CONDITION, TRUE, reason="Assigned", message=address, now=now)
        conditions = [*conditions, assigned]
    own = [_stamped(entry, export) for entry in (valid, *conditions)]
    return Wanted(ref=Ref.of(export), conditions=by_type(own, _TYPES), create=False)


def withdrawn(export: ApiServiceExport, now: float) -> Wanted | None:
    """Return the status of a ServiceExport after its cluster has left the ClusterSet; None: no change."""
    before = export.status.conditions
    if condition_of(before, "Ready").reason in ("", NO_CLUSTER_SET):
        return None
    why = "this cluster is in no ClusterSet: the Service is not exported"
    ready = _stamped(condition(before, "Ready", FALSE, reason=NO_CLUSTER_SET, message=why, now=now), export)
    return Wanted(ref=Ref.of(export), conditions=by_type([ready], ("Conflict", ADDRESS_CONDITION)), create=False)


def _stamped(entry: Condition, export: ApiServiceExport) -> Condition:
    """Return a condition with the generation of its object. metav1.Condition requires a message, empty or not."""
    return patch(
        Condition,
        type=entry.type,
        status=entry.status,
        reason=entry.reason,
        message=entry.message,
        last_transition_time=entry.last_transition_time,
        observed_generation=export.metadata.generation,
    )


def leaders_conditions(
    export: ApiServiceExport,
    exports: Iterable[ResourceExport | None],
    ports: Iterable[ApiServicePort],
    view: View,
    now: float,
    *,
    not_ready: str = "",
    outside: str = "",
) -> list[Condition]:
    """Return Ready and Conflict from the status of the two ResourceExports; only Ready while they have none.

    The message of Ready has what the leader leaves out of an export that it merges.
    `ports`: those of the Service, if it is exported. `not_ready`: why connections find no endpoint.
    `outside`: what to do if the leader refuses the ClusterIP.
    """
    before = export.status.conditions
    succeeded, conflict, notes = False, None, list[str]()
    for resource_export in exports:
        conditions = resource_export.status.conditions if resource_export is not None else ()
        if (failure := condition_of(conditions, "Failure")).type:
            message = printable(failure.message, _SHOWN)
            if resource_export is not None and resource_export.spec.kind == names.ExportKind.ENDPOINTS:
                # Endpoints are refused for what they are, whatever other clusters export.
                why = f"{message}; {outside}" if outside else message
                return [
                    condition(before, "Ready", FALSE, reason="Failed", message=why, now=now),
                    conflict or condition(before, "Conflict", FALSE, reason="NoConflicts", now=now),
                ]
            reason = _conflict_reason(failure, ports, view, export)
            return [
                condition(before, "Ready", FALSE, reason="Failed", message=message, now=now),
                condition(before, "Conflict", TRUE, reason=reason, message=message, now=now),
            ]
        if (leaders_conflict := condition_of(conditions, "Conflict")).is_true:
            reason, message = _reason(leaders_conflict), printable(leaders_conflict.message, _SHOWN)
            conflict = condition(before, "Conflict", TRUE, reason=reason, message=message, now=now)
        if (success := condition_of(conditions, "Succeeded")).is_true:
            succeeded = True
            notes += [f"leader: {printable(success.message, _SHOWN)}"] if success.message else []
    if not succeeded:
        why = "the leader has not processed it yet"
        return [condition(before, "Ready", FALSE, reason="Pending", message=why, now=now)]
    ready = condition(before, "Ready", TRUE, reason="Exported", message="; ".join(notes), now=now)
    if not_ready:
        ready = condition(before, "Ready", FALSE, reason=NO_ENDPOINT, message=not_ready, now=now)
    return [
        ready,
        conflict or condition(before, "Conflict", FALSE, reason="NoConflicts", now=now),
    ]


def _conflict_reason(
    failure: Condition, ports: Iterable[ApiServicePort], view: View, export: ApiServiceExport
) -> str:
    """Return KEP-1645's reason if ports differ from those of the first export, else the leader's."""
    name = names.service_import(export.namespace, export.name)
    resource_import = view.get(import_ref(view.leader, name), ResourceImport) if view.leader is not None else None
    imported = _port_set(resource_import.spec.service_import.spec.ports if resource_import is not None else ())
    return "PortConflict" if imported and _port_set(ports) != imported else _reason(failure)


def _reason(leaders_condition: Condition) -> str:
    """Return the leader's reason if it is a valid one, else that of Antrea's leader."""
    reason = leaders_condition.reason
    return reason if reason.isascii() and reason.isidentifier() and len(reason) <= 64 else "ConvergeFailure"


def _port_set(ports: Iterable[ApiServicePort]) -> frozenset[tuple[str, str, int]]:
    return frozenset((port.name, port.protocol, port.port) for port in ports)
