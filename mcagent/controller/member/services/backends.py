"""What a Service of this cluster exports: its ports, and the subsets of its Endpoints export. Pure.

An address stands in one subset: that of all ports which it serves. Ready endpoints count, or those that still
serve while none is ready, as kube-proxy has it (KEP-1669).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from mcagent.controller.contract import names
from mcagent.controller.contract.raw import items_at, text_at, texts_at, value_at
from mcagent.controller.contract.services import (
    NO_CLUSTER_IP,
    EndpointPort,
    Hostnames,
    Ports,
    Subsets,
    endpoint_ports,
    port_entry,
    session_affinity,
)
from mcagent.core.addresses.rules import refuse_address
from mcagent.kube.source import RawObject
from mcagent.model.net import parse_address

MAX_SIZE = 240_000  # bytes of JSON that the subsets may have: leaders refuse exports of more than 256 KiB


def ports_of(service: RawObject) -> list[EndpointPort]:
    """Return the ports of a Service, in its order."""
    return [
        (text_at(item, "name"), text_at(item, "protocol") or "TCP", number)
        for item in items_at(service, "spec", "ports")
        if isinstance(number := item.get("port"), int)
    ]


def service_spec(service: RawObject) -> RawObject:
    """Return the payload of the Service export. Fields that are not set are named, so that they go."""
    ports = [
        port_entry(
            item.get("port"),
            text_at(item, "protocol") or "TCP",
            text_at(item, "name"),
            text_at(item, "appProtocol"),
        )
        for item in items_at(service, "spec", "ports")
    ]
    affinity = text_at(service, "spec", "sessionAffinity") == "ClientIP"
    seconds = value_at(service, "spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    fields = {
        "ports": ports,
        "clusterIP": NO_CLUSTER_IP if is_headless(service) else None,
        "internalTrafficPolicy": text_at(service, "spec", "internalTrafficPolicy") or None,
        "trafficDistribution": text_at(service, "spec", "trafficDistribution") or None,
        "ipFamilies": texts_at(service, "spec", "ipFamilies") or None,
    }
    if affinity and not seconds:
        return fields | {"sessionAffinity": "ClientIP", "sessionAffinityConfig": None}
    return fields | session_affinity(seconds if affinity else None)


def is_headless(service: RawObject) -> bool:
    """Tell whether a Service has no ClusterIP on purpose."""
    return text_at(service, "spec", "clusterIP") == NO_CLUSTER_IP


def cluster_ips(service: RawObject) -> list[str]:
    """Return the IPv4 ClusterIPs of a Service; none for a headless one."""
    given = texts_at(service, "spec", "clusterIPs") or [text_at(service, "spec", "clusterIP")]
    return [text for text in dict.fromkeys(given) if _address(text) is not None]


def cluster_ip_subsets(service: RawObject) -> Subsets:
    """Return the subset of a Service that is reached by its ClusterIP."""
    return _subsets({ip: set(ports_of(service)) for ip in cluster_ips(service)})


def pod_ip_subsets(service: RawObject, slices: Iterable[RawObject]) -> Subsets:
    """Return the subsets of a Service whose endpoints are reached directly."""
    wanted = {(name, protocol) for name, protocol, _ in ports_of(service)}
    ready: dict[str, set[EndpointPort]] = {}
    serving: dict[str, set[EndpointPort]] = {}
    for found in slices:
        if text_at(found, "addressType") != "IPv4":
            continue
        ports = {
            (text_at(p, "name"), text_at(p, "protocol") or "TCP", number)
            for p in items_at(found, "ports")
            if isinstance(number := p.get("port"), int)
            and (text_at(p, "name"), text_at(p, "protocol") or "TCP") in wanted
        }
        if not ports:
            continue
        for endpoint in items_at(found, "endpoints"):
            for text in texts_at(endpoint, "addresses"):
                if _address(text) is None:
                    continue
                if is_ready(endpoint):
                    ready.setdefault(text, set()).update(ports)
                elif _serves(endpoint):
                    serving.setdefault(text, set()).update(ports)
    return _subsets(ready or serving)


def hostnames_of(slices: Iterable[RawObject]) -> dict[str, str]:
    """Return the hostnames of endpoints that have one, by address: DNS of a headless Service names them."""
    return {
        text: hostname
        for found in slices
        for endpoint in items_at(found, "endpoints")
        for text in texts_at(endpoint, "addresses")
        if names.is_label(hostname := text_at(endpoint, "hostname"))
    }


def places_of(slices: Iterable[RawObject]) -> dict[str, RawObject]:
    """Return where endpoints are (node, zone, hints), by address, for who prefers near ones."""
    return {
        text: {key: endpoint[key] for key in ("nodeName", "zone", "hints") if endpoint.get(key)}
        for found in slices
        for endpoint in items_at(found, "endpoints")
        for text in texts_at(endpoint, "addresses")[:1]
    }


def count_ready(slices: Iterable[RawObject]) -> int:
    """Return how many endpoints of a Service take connections, of the family that has more."""
    ready: dict[str, set[str]] = {}
    serving: dict[str, set[str]] = {}
    for found in slices:
        family = text_at(found, "addressType")
        for endpoint in items_at(found, "endpoints"):
            kept = ready if is_ready(endpoint) else serving if _serves(endpoint) else {}
            kept.setdefault(family, set()).update(texts_at(endpoint, "addresses")[:1])
    return max(map(len, (ready if any(ready.values()) else serving).values()), default=0)


def limited(subsets: Subsets, hostnames: Hostnames) -> tuple[Subsets, int]:
    """Return the subsets as far as they fit into one object, and how many addresses that leaves out.

    The wire contract has one Endpoints export for a Service, by name, so there is no second one to go on in.
    """
    room = MAX_SIZE
    kept: dict[Ports, tuple[str, ...]] = {}
    dropped = 0
    for ports, addresses in subsets.items():
        room -= len(json.dumps(endpoint_ports(ports))) + 40
        taken = []
        for text in addresses:
            room -= len(text) + 12  # {"ip": "..."}, and the comma
            room -= len(hostnames[text]) + 16 if text in hostnames else 0
            if room >= 0:
                taken.append(text)
        dropped += len(addresses) - len(taken)
        if taken:
            kept[ports] = tuple(taken)
    return kept, dropped


def is_ready(endpoint: RawObject) -> bool:
    """Tell whether an endpoint is ready: unknown means ready, says the API."""
    return value_at(endpoint, "conditions", "ready") is not False


def _serves(endpoint: RawObject) -> bool:
    return value_at(endpoint, "conditions", "serving") is True


def _subsets(found: Mapping[str, set[EndpointPort]]) -> Subsets:
    groups: dict[Ports, list[str]] = {}
    for address, ports in found.items():
        if ports:
            groups.setdefault(tuple(sorted(ports)), []).append(address)
    return {
        ports: tuple(sorted(addresses, key=lambda text: int(IPv4Address(text))))
        for ports, addresses in sorted(groups.items())
    }


def _address(text: str) -> IPv4Address | None:
    try:
        found = parse_address(text)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Address) and refuse_address(found) is None else None
