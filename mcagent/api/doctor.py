"""The page /doctor of an agent, and what `mcagent doctor -o json` prints."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from mcagent.api.codec import VERSION, CamelRecord, Record


class FindingLevel(StrEnum):
    """Severity, from good to bad; `skipped`: the check could not be made."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


class CheckFinding(Record, frozen=True):
    """A line of the report. `seen`: the observation; `reason`: a key of docs/doctor.md, "" without a fault."""

    level: str = FindingLevel.OK
    check: str = ""
    seen: str = ""
    reason: str = ""
    subject: str = ""
    why: str = ""
    do: str = ""

    @property
    def wrong(self) -> bool:
        """Whether it is a warning or a fault."""
        return self.level in (FindingLevel.WARNING, FindingLevel.FAILED)


class NodeReport(CamelRecord, frozen=True):
    """The findings about a Node; this is the page /doctor."""

    api_version: str = VERSION
    node: str = ""
    agent_version: str = ""
    seconds: float = 0.0
    findings: tuple[CheckFinding, ...] = ()


class ClusterReport(Record, frozen=True):
    """The findings about a cluster's API. `cluster`: the context of the kubeconfig, or the server."""

    cluster: str = ""
    server: str = ""
    findings: tuple[CheckFinding, ...] = ()


class DoctorReport(Record, frozen=True):
    """The output of the command. `worst`: the worst level of all findings."""

    api_version: str = field(name="apiVersion", default=VERSION)
    clusters: tuple[ClusterReport, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    worst: str = FindingLevel.OK

    @property
    def findings(self) -> tuple[CheckFinding, ...]:
        """The findings of all parts."""
        parts = [part.findings for part in self.clusters] + [part.findings for part in self.nodes]
        return tuple(finding for findings in parts for finding in findings)
