"""The controller that leads a ClusterSet: others would write the same objects, with settings of their own. Pure.

Controllers of one namespace are replicas with one Lease. HOLDER_ANNOTATION of a leader's ClusterSet has the
namespace of the controller that leads it, until that controller stops. One of another namespace writes only
REFUSED_HOLDER_ANNOTATION, for the holder to report. Antrea's controllers write neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.api.patches import annotated

HOLDER_ANNOTATION = "mcagent.io/controller"
REFUSED_HOLDER_ANNOTATION = "mcagent.io/refused-controller"
SECOND_CONTROLLER = "SecondController"  # reason of conditions, Events and findings
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def holders(cluster_set: ClusterSet) -> tuple[str, str]:
    """Return the namespaces of the controller that leads a ClusterSet, and of one that was refused; "": none."""
    texts = (cluster_set.annotation(key) or "" for key in (HOLDER_ANNOTATION, REFUSED_HOLDER_ANNOTATION))
    holder, refused = (text if _NAMESPACE.fullmatch(text) else "" for text in texts)
    return holder, refused if refused != holder else ""


def may_lead(cluster_set: ClusterSet, home: str) -> bool:
    """Tell whether the controller of namespace `home` may write the ClusterSet's objects."""
    return not home or holders(cluster_set)[0] in ("", home)


def message(cluster_set: ClusterSet) -> str:
    """Return what is wrong with a ClusterSet that two controllers lead; "" if one does."""
    holder, refused = holders(cluster_set)
    if not holder or not refused:
        return ""
    return (
        f"the controllers of namespaces {holder} and {refused} both lead this ClusterSet: that of {refused} is "
        f"refused. Uninstall one of them, or change its key namespace. If that of {holder} no longer runs: "
        f"kubectl annotate clusterset -n {cluster_set.namespace} {cluster_set.name} {HOLDER_ANNOTATION}-"
    )


def released(view: View, namespace: str | None, home: str) -> Iterable[Wanted]:
    """Yield the writes after which controllers of other namespaces may lead the ClusterSets of this one."""
    for cluster_set in view.list(ClusterSet, namespace=namespace):
        own = [
            key for key in (HOLDER_ANNOTATION, REFUSED_HOLDER_ANNOTATION) if cluster_set.annotation(key) == home
        ]
        if own:
            yield Wanted(ref=Ref.of(cluster_set), body=annotated(ClusterSet, dict.fromkeys(own)), create=False)
