"""What members leave out of imported Services, by their announcements, as notes for the exporters. Pure.

A report is untrusted text, shown after the reporter's cluster ID. It changes neither what is imported nor whether
an export succeeds. It stands in the status of other clusters' Endpoints exports only, which no importer watches. A
report that keeps changing costs few writes: an export that changed less than SETTLED ago keeps its reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract.names import IMPORT_PROBLEMS_ANNOTATION
from mcagent.controller.contract.problems import SHOWN, read_report
from mcagent.controller.leader.exports.header import BY_TARGET, announces
from mcagent.controller.machinery.reconciler import Index, ObjectChange, Ref, Side, View
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport
from mcagent.model.parsing.field import printable

SETTLED = 60.0  # seconds
_MOST = 3  # reports in a note
_BEGIN = "not all is imported: "


def _reports(announce: ApiObject | None) -> dict[str, str]:
    """Return the reports of a member by the keys of Services, "area/namespace/name"."""
    reports: dict[str, str] = {}
    if announces(announce) and announce is not None:
        for reported, why in read_report(announce, IMPORT_PROBLEMS_ANNOTATION).items():
            name, _, namespace = reported.partition(".")
            reports[f"{announce.namespace}/{namespace}/{name}"] = why
    return reports


# Announcements, under the keys of the Services that they report.
REPORTS = Index("import-reports", MemberClusterAnnounce, Side.LOCAL, _reports)


def changed_reports(change: ObjectChange, view: View) -> Iterable[str]:
    """Return the exported Services whose report by a member changed. Each heartbeat calls this."""
    before, after = _reports(change.old), _reports(change.new)
    changed = {key for key in {**before, **after} if before.get(key) != after.get(key)}
    return [key for key in sorted(changed) if view.count(BY_TARGET, key)]


def reports_of(view: View, key: str) -> Sequence[tuple[str, str]]:
    """Return the first reports about a Service, by cluster ID, as cluster ID and text."""
    reporters = view.indexed(REPORTS, key)[: _MOST + 2]  # one may be the exporter
    return [
        (r.cluster_id, f"cluster {r.cluster_id} reports {printable(_reports(r)[key], SHOWN)}") for r in reporters
    ]


def with_reports(
    view: View, export: ResourceExport, note: str, reports: Sequence[tuple[str, str]]
) -> tuple[str, float | None]:
    """Return the note of an export that is merged, with the reports of other clusters.

    The second value: the seconds until reports that have changed can take the place of the present ones.
    """
    texts = [text for cluster, text in reports if cluster != export.spec.cluster_id]
    shown = "; ".join(texts[:_MOST]) + ("; ..." if len(texts) > _MOST else "")
    own = f"{note}, {_BEGIN}" if note else _BEGIN
    message = f"{own}{shown}" if texts else note
    present = condition_of(export.status.conditions, "Succeeded")
    differs_in_reports = present.message != message and (
        present.message == note or present.message.startswith(own)
    )
    wait = SETTLED - view.quiet_for(Ref.of(export))
    if present.is_true and differs_in_reports and wait > 0:
        return present.message, wait
    return message, None
