"""Reads an agent's /status for the doctor. It may be another version's: what is missing counts as not told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from mcagent.core.doctor.observed import AgentSeen, HandshakeSeen
from mcagent.model.net import Address
from mcagent.model.problem import Problem, Severity


def agent_seen(status: Mapping[str, Any]) -> AgentSeen:
    """Return what /status says."""
    drain, encryption = _dict(status.get("drain")), _dict(status.get("encryption"))
    clusters = _dict(_dict(status.get("summary")).get("clusters"))
    phase, why = str(drain.get("phase", "serving")), str(drain.get("why", ""))
    return AgentSeen(
        version=str(status.get("version", "")),
        role=str(_dict(status.get("summary")).get("role", "")),
        ready=status.get("ready") is True,
        alive=status.get("alive") is True,
        checks=tuple(
            (str(one.get("name")), str(one.get("text"))) for one in _dicts(status, "checks") if not one.get("good")
        ),
        problems=tuple(_problems(status)),
        missing_tunnels=tuple(
            (str(one.get("name")), f"{one.get('peerKind')} {one.get('peer')}")
            for one in _dicts(status, "tunnels")
            if one.get("exists") is False
        ),
        draining="" if phase == "serving" else f"{phase}: {why}",
        wireguard=tuple(
            HandshakeSeen(
                cluster=str(one.get("cluster", "")),
                gateway=str(one.get("gateway", "")),
                state=str(one.get("state", "")),
                text=str(one.get("text", "")),
                causes=tuple(str(cause) for cause in one.get("causes") or ()),
                port=port if isinstance(port := one.get("port"), int) else 0,
            )
            for one in _dicts(encryption, "peers")
        ),
        lost_kinds=tuple(
            f"{one.get('kind')}: {one.get('error') or 'not connected'}"
            for one in _dicts(status, "informers")
            if one.get("synced") and not one.get("connected")
        ),
        antrea=tuple(sorted(name for name, one in clusters.items() if _dict(one).get("antrea") is True)),
    )


def outer_addresses(status: Mapping[str, Any] | None) -> dict[Address, Address]:
    """Return the gateway's own address of each tunnel end that is another one: behind WireGuard, or mapped."""
    found: dict[Address, Address] = {}
    ends = {
        str(gateway.get("tunnel")): str(gateway.get("address"))
        for cluster in _dicts(status or {}, "gateways")
        for gateway in _dicts(cluster, "gateways")
    }
    for tunnel in _dicts(status or {}, "tunnels"):
        try:
            end, gateway = (
                ip_address(str(tunnel.get("remoteIP"))),
                ip_address(ends.get(str(tunnel.get("name")), "")),
            )
        except ValueError:
            continue
        if end != gateway:
            found[end] = gateway
    return found


def _problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    for one in _dicts(status, "problems"):
        yield Problem(
            subject=str(one.get("subject", "")),
            path=str(one.get("path", "")),
            reason=str(one.get("reason", "")),
            message=str(one.get("message", "")),
            severity=Severity.WARNING if one.get("severity") == Severity.WARNING else Severity.ERROR,
        )


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(holder: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    found = holder.get(name)
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict):
            yield one
