"""The instance of a member's controller, by which two controllers that announce one cluster are told apart. Pure.

A copy of a cluster has the UID of the original (`cluster_uid`), but its controller is another process.
INSTANCE_ANNOTATION of a MemberClusterAnnounce has a random ID of the process that wrote the last heartbeat, and
for how many seconds that process holds the announcement without another one. A process that stops removes it.
Another process writes the announcement only after it saw no heartbeat for so long: by its own clock, as in leader
election, because clocks of two clusters are not compared. One that sees heartbeats of another process writes only
REFUSED_INSTANCE_ANNOTATION, for the leader to report, until DUPLICATE_SILENCE. Members of Antrea publish no
instance.
"""

from __future__ import annotations

import re

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import DUPLICATE_MARK, is_uid
from mcagent.controller.machinery.reconciler import Refusal
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.api.patches import annotated

INSTANCE_ANNOTATION = "mcagent.io/instance"
REFUSED_INSTANCE_ANNOTATION = "mcagent.io/refused-instance"
DUPLICATE_SILENCE = 3600.0  # seconds: longer than an upgrade of the controller that writes the announcement
_ALIVE = 2  # heartbeats: one may have been on its way when its process ended
_HEARTBEATS = 3.0  # periods without a heartbeat after which an announcement is free
_LONGEST = 3 * 3600.0  # seconds: three times the longest heartbeatPeriod
_WAITING = "controller"  # begins the refusals while it is not known whether the other process still runs
_TEXT = re.compile(r"([0-9A-Za-z-]{1,64}) ([0-9]{1,5})")


def instance_text(instance: str, heartbeat_period: float) -> str:
    """Return the annotation of a process that writes a heartbeat each `heartbeat_period` seconds."""
    return f"{instance} {heartbeat_period * _HEARTBEATS:.0f}"


def read_instance(text: str) -> tuple[str, float]:
    """Return the instance and the seconds for which it holds the announcement; "" and 0.0: none."""
    match = _TEXT.fullmatch(text)
    return (match[1], min(float(match[2]), _LONGEST)) if match is not None else ("", 0.0)


def refused_instance(announce: ApiObject | None) -> str:
    """Return the instance in an announcement that was refused; "": none."""
    text = (announce.annotation(REFUSED_INSTANCE_ANNOTATION) if announce is not None else "") or ""
    return text if is_uid(text) else ""


class AnnouncementHolder:
    """What a process has seen of who writes the announcement. `now`: seconds of a clock that never steps."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.refused = ""  # the instance that the announcement names as refused; "": none, or it is not held here
        self._record: tuple[str, str] | None = None  # instance and heartbeat of another process
        self._seen = 0.0  # when it was first seen so
        self._lasts = 0.0  # seconds for which the last of them holds the announcement
        self._changes = 0  # heartbeats that came since

    def refuse(self, announce: ApiObject, cluster_id: str, now: float, *, duplicate: bool) -> Refusal | None:
        """Return the refusal to write an announcement that another process holds; None: no refusal.

        `duplicate`: the ClusterSet's condition says already that the ID has another cluster.
        """
        text = announce.annotation(INSTANCE_ANNOTATION) or ""
        holder, lasts = read_instance(text)
        self.refused = ""
        if duplicate:
            self._changes = _ALIVE
        watched = self._record is not None or duplicate
        if not self.instance or holder == self.instance or not (holder or watched):
            if self.instance and holder == self.instance:
                self.refused = announce.annotation(REFUSED_INSTANCE_ANNOTATION) or ""
            self._take()
            return None
        record = (text, announce.annotation(names.HEARTBEAT_ANNOTATION) or "")
        if record != self._record:
            self._changes += self._record is not None
            self._record, self._seen, self._lasts = record, now, lasts or self._lasts
        is_alive = self._changes >= _ALIVE
        if now - self._seen >= (DUPLICATE_SILENCE if is_alive else self._lasts):
            self._take()
            return None
        if not is_alive:
            reason = f"{_WAITING} {holder} wrote the last heartbeat: waiting {lasts:.0f} s for another one"
            return Refusal(reason=reason)
        mark = annotated(MemberClusterAnnounce, {REFUSED_INSTANCE_ANNOTATION: self.instance})
        reason = (
            f"{DUPLICATE_MARK} {cluster_id} is announced by the controller of another cluster "
            f"({holder or 'stopped'}; this one is {self.instance}): one is a copy of the other. Give one of them "
            "another cluster ID (mcagent clusterset leave --clusterset NAME, then join with another --clusterid). "
            "If this cluster replaces the other one, stop its controller and, on the leader: "
            "kubectl delete memberclusterannounce "
            f"-n {announce.namespace} {names.announce(cluster_id)}"
        )
        return Refusal(reason=reason, body=mark)

    def _take(self) -> None:
        self._record, self._changes = None, 0


def is_waiting(failure: str) -> bool:
    """Tell whether the failure of a write is that another process may still hold the announcement."""
    return failure.startswith(f"{_WAITING} ")
