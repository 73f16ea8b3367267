"""Check `path-mtu`: the tunnels' largest packets reach every gateway unfragmented."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.problems import problems_of
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.doctor.readings.underlay import paths, underlay

CHECK = DoctorCheck(
    name="path-mtu",
    order=70,
    summary="the tunnels' largest packets reach every gateway unfragmented (probe)",
    causes={
        "MtuTooLarge": failed(
            "small packets pass and large ones are lost: connections open, then hang (a TLS handshake, a large "
            "answer)",
            "mtu: {mtu} in the configuration of all clusters (docs/configuration.md), or let the network pass "
            "packets of {needed} bytes",
        ),
        "MtuDiffers": warning(
            "mtu exceeds the uplink's MTU minus the tunnel's headers: large packets are lost",
            "mtu: 0 in the configuration, which takes the uplink's",
        ),
    },
)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Compare the MTU that tunnels assume with the sizes that pass."""
    findings = [*_findings(node)]
    measured = any(finding.reason == "MtuTooLarge" for finding in findings)
    # Measurements of this check are more precise than the agent's probes.
    findings += [] if measured else problems_of(CHECK, node.status.problems)
    yield from findings
    if not any(finding.reason in CHECK.causes for finding in findings):
        yield _result(node)


def _findings(node: ExaminedNode) -> Iterator[CheckFinding]:
    reading, host_port = node.read(underlay), node.config.host_port
    if reading.host_mtu and reading.wanted_mtu and reading.host_mtu > reading.wanted_mtu:
        allowed = f"{reading.uplink} ({reading.uplink_mtu}) allows {reading.wanted_mtu}"
        yield CHECK.finding("MtuDiffers", f"routes by {host_port} have {reading.host_mtu}; {allowed}")
    for path in node.read(paths) if reading.host_mtu else ():
        if path.small and not path.full:
            mtu = reading.host_mtu - (path.size - max(path.passes, path.reported_mtu))
            reported = f"a router said {path.reported_mtu}" if path.reported_mtu else "no router said so"
            detail = f"packets of {path.size} bytes are lost on the way to {path.address}"
            yield CHECK.finding(
                "MtuTooLarge",
                f"{detail}, {path.passes} pass; {reported}",
                subject=str(path.address),
                mtu=mtu,
                needed=path.size,
            )


def _result(node: ExaminedNode) -> CheckFinding:
    """Return the finding without faults."""
    reading, host_port = node.read(underlay), node.config.host_port
    if not reading.host_mtu:
        absent = f"there is no device {host_port}"
        return CHECK.skipped(absent) if node.read(switch).tunnels else CHECK.passed(f"{absent}, and no tunnel")
    probed, routes = node.read(paths), f"routes by {host_port} have {reading.host_mtu}"
    answered = [path for path in probed if path.small]
    if answered:
        size = max(path.size for path in answered)
        return CHECK.passed(f"{routes}; {size} bytes pass to {len(answered)} peers")
    if not probed:
        return CHECK.passed(f"{routes}; there is no peer")
    return CHECK.skipped(f"no peer answers probes: {', '.join(str(path.address) for path in probed[:5])}")
