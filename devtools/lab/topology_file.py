"""A lab's topology to and from plain dicts: what a YAML file of `devtools/mclab up --file` holds.

Two forms are read: the full one that `to_dict` writes, and the short one with the numbers that
`devtools.lab.topology.generate` takes (`{clusters: 2, workers: 1, cni: flannel}`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import TypeVar

import yaml

from devtools.lab.topology import Cluster, Cni, Node, Pod, Service, Topology, Underlay, generate
from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.resources import TunnelType
from mcagent.model.errors import InputError

E = TypeVar("E", bound=StrEnum)

_SHORT = ("name", "clusters", "workers", "gateways", "pods")


def to_dict(topology: Topology) -> dict[str, object]:
    """Return the full form: only dicts, lists, strings, numbers and booleans."""
    plain = _plain(topology)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
        return {name: _plain(item) for name, item in fields.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int)) else str(value)


def load(path: Path) -> Topology:
    """Read a YAML file. Raises InputError naming the file, the path in it, and what is wrong."""
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InputError(str(path), "", str(error)) from None
    return from_dict(raw, str(path))


def from_dict(raw: object, subject: str = "lab") -> Topology:
    """Return the topology that a dict of either form describes. Raises InputError."""
    top = _Reader(subject, "", raw)
    if not isinstance(top.mapping().get("clusters", 0), list):
        return _short(top)
    clusters = tuple(_cluster(item) for item in top.each("clusters"))
    topology = Topology(
        name=top.text("name", "lab"),
        clusters=clusters,
        tunnel=top.choice("tunnel", TunnelType, TunnelType.GENEVE),
        datapath=top.choice("datapath", DatapathChoice, DatapathChoice.AUTO),
        encryption=top.choice("encryption", TrafficEncryption, TrafficEncryption.NONE),
    )
    top.done("name", "clusters", "tunnel", "datapath", "encryption")
    _check(topology, subject)
    return topology


def _short(top: _Reader) -> Topology:
    numbers = {key: top.number(key) for key in _SHORT[1:] if key in top.mapping()}
    top.done(*_SHORT, "tunnel", "cni", "datapath", "encryption", "underlay", "same_cidrs")
    return generate(
        name=top.text("name", "lab"),
        tunnel=top.choice("tunnel", TunnelType, TunnelType.GENEVE),
        cni=top.choice("cni", Cni, Cni.FLANNEL),
        datapath=top.choice("datapath", DatapathChoice, DatapathChoice.AUTO),
        encryption=top.choice("encryption", TrafficEncryption, TrafficEncryption.NONE),
        underlay=top.choice("underlay", Underlay, Underlay.IPV4),
        same_cidrs=top.flag("same_cidrs", default=False),
        **numbers,
    )


def _check(topology: Topology, subject: str) -> None:
    names: set[str] = set()
    for name in [c.name for c in topology.clusters] + [n.name for _, n in topology.nodes()]:
        if name in names:
            raise InputError(subject, "clusters", f"two are called {name}")
        names.add(name)
    pods: set[str] = set()
    for _, _, pod in topology.pods():
        if pod.name in pods:
            raise InputError(subject, "clusters", f"two Pods are called {pod.name}")
        pods.add(pod.name)
    for cluster in topology.clusters:
        for node in cluster.nodes:
            if (node.address6 is None) is not (cluster.subnet6 is None):
                path = f"clusters.{cluster.name}.nodes.{node.name}.address6"
                raise InputError(
                    subject, path, "Nodes have one where the cluster has a subnet6, all of them or none"
                )
        for service in cluster.services:
            for name in sorted(set(service.pods) - pods):
                path = f"clusters.{cluster.name}.services.{service.name}.pods"
                raise InputError(subject, path, f"no Pod {name}")


def _cluster(item: _Reader) -> Cluster:
    config = item.mapping().get("config", {})
    if not isinstance(config, Mapping):
        raise item.error("config", "must be a mapping")
    item.done(
        *("name", "cni", "subnet", "subnet6", "pod_cidr", "service_cidr", "nodes", "services"),
        *("publish_pods", "config"),
    )
    return Cluster(
        name=item.text("name"),
        cni=item.choice("cni", Cni, Cni.FLANNEL),
        subnet=item.network("subnet"),
        pod_cidr=item.network("pod_cidr"),
        service_cidr=item.network("service_cidr"),
        subnet6=item.network6("subnet6") if "subnet6" in item.mapping() else None,
        nodes=tuple(_node(node) for node in item.each("nodes")),
        services=tuple(_service(service) for service in item.each("services")),
        publish_pods=item.flag("publish_pods", default=True),
        config=dict(config),
    )


def _node(item: _Reader) -> Node:
    item.done("name", "address", "address6", "gateway", "pod_cidr", "pods")
    pods = []
    for pod in item.each("pods"):
        pod.done("name", "address")
        pods.append(Pod(name=pod.text("name"), address=pod.address("address")))
    return Node(
        name=item.text("name"),
        address=item.address("address"),
        address6=item.address6("address6") if "address6" in item.mapping() else None,
        gateway=item.flag("gateway", default=False),
        pod_cidr=item.network("pod_cidr") if "pod_cidr" in item.mapping() else None,
        pods=tuple(pods),
    )


def _service(item: _Reader) -> Service:
    item.done("name", "cluster_ip", "pods", "exported", "namespace", "port", "target_port", "protocols")
    defaults = Service(name="", cluster_ip=IPv4Address(0), pods=())
    return Service(
        name=item.text("name"),
        cluster_ip=item.address("cluster_ip"),
        pods=tuple(item.texts("pods", ())),
        exported=item.flag("exported", default=True),
        namespace=item.text("namespace", defaults.namespace),
        port=item.number("port", defaults.port),
        target_port=item.number("target_port", defaults.target_port),
        protocols=tuple(item.texts("protocols", defaults.protocols)),
    )


class _Reader:
    """A mapping of the file with its place in it, so that every error names the place."""

    def __init__(self, subject: str, path: str, raw: object) -> None:
        self._subject, self._path, self._raw = subject, path, raw

    def error(self, key: str, reason: str) -> InputError:
        """Return an error that names a key of this mapping."""
        return InputError(self._subject, f"{self._path}.{key}".strip("."), reason)

    def mapping(self) -> Mapping[str, object]:
        """Return the mapping itself."""
        if not isinstance(self._raw, Mapping):
            raise InputError(self._subject, self._path, "must be a mapping")
        return self._raw

    def done(self, *known: str) -> None:
        """Refuse unknown keys."""
        for key in self.mapping():
            if key not in known:
                raise self.error(str(key), f"unknown; known are {', '.join(known)}")

    def each(self, key: str) -> list[_Reader]:
        """Return the mappings of a list."""
        value = self.mapping().get(key, [])
        if not isinstance(value, list):
            raise self.error(key, "must be a list")
        return [
            _Reader(self._subject, f"{self._path}.{key}[{i}]".strip("."), item) for i, item in enumerate(value)
        ]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a non-empty string."""
        value = self.mapping().get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, "must be a string")
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> list[str]:
        """Return a list of strings."""
        value = self.mapping().get(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of strings")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """Return an integer."""
        value = self.mapping().get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "must be a number")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self.mapping().get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def choice(self, key: str, kind: type[E], default: E) -> E:
        """Return one of an enumeration's values."""
        value = self.mapping().get(key, default)
        try:
            return kind(str(value))
        except ValueError:
            raise self.error(key, f"must be one of {', '.join(kind)}") from None

    def address(self, key: str) -> IPv4Address:
        """Return an IPv4 address."""
        try:
            return IPv4Address(self.text(key))
        except ValueError:
            raise self.error(key, "must be an IPv4 address") from None

    def address6(self, key: str) -> IPv6Address:
        """Return an IPv6 address."""
        try:
            return IPv6Address(self.text(key))
        except ValueError:
            raise self.error(key, "must be an IPv6 address") from None

    def network6(self, key: str) -> IPv6Network:
        """Return an IPv6 network."""
        try:
            return IPv6Network(self.text(key))
        except ValueError:
            raise self.error(key, "must be an IPv6 CIDR") from None

    def network(self, key: str) -> IPv4Network:
        """Return an IPv4 network."""
        try:
            return IPv4Network(self.text(key))
        except ValueError:
            raise self.error(key, "must be an IPv4 CIDR") from None
