"""The names that `mcagent trace` accepts: Pods and Services, resolved to addresses and endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any

from mcagent.api.trace import NodeTrace
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiPod, ApiService, ApiServicePort
from mcagent.model.errors import InputError
from mcagent.model.kinds import object_path
from mcagent.model.net import address_or_none
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

_SERVICE = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9-]{1,63})\.svc\.clusterset\.local\.?")
_NAMED = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")
IMPORTED = "antrea-mc-"  # prefix of the names of imported Services
_PORT = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An endpoint of a Service. `share`: of new connections, from 0 to 1."""

    address: IPv4Address
    port: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTarget:
    """The destination. `address` is a Service's if it has one; `by`: the program that chooses the endpoint."""

    address: IPv4Address
    port: int
    name: str = ""
    choices: tuple[Choice, ...] = ()
    by: str = ""


class NamedObjects:
    """Resolves names by the API server; without a kubeconfig only addresses are accepted."""

    def __init__(self, kubeconfig: str, context: str) -> None:
        self._file, self._context = kubeconfig, context

    def source(self, text: str) -> tuple[IPv4Address, str]:
        """Return address and Node ("": unknown) of NAMESPACE/POD or an address. Raises InputError, SourceError."""
        named = _NAMED.fullmatch(text)
        if named is None:
            return _address_or_name("--from", text, "NAMESPACE/POD"), self._node_of(text)
        pod = read_as(ApiPod, self._get("--from", object_path(Kind.POD, named[1], named[2])))
        if pod.status.is_finished:
            raise InputError("trace", "--from", f"Pod {text} has ended: another may have its address by now")
        addresses = _ipv4(ip.ip for ip in pod.status.pod_ips) or _ipv4([pod.status.pod_ip])
        if not addresses:
            raise InputError("trace", "--from", f"Pod {text} has no IPv4 address")
        return addresses[0], pod.spec.node_name

    def target(self, where: str, port: int, protocol: str) -> TraceTarget:
        """Return the destination, for a Service with its ready endpoints. Raises InputError, SourceError.

        `port` 0: the first one of a Service with the protocol, else 80.
        """
        service = _SERVICE.fullmatch(where)
        named = _NAMED.fullmatch(where)
        if service is not None:
            namespace, name = service[2], f"{IMPORTED}{service[1]}"
        elif named is not None:
            namespace, name = named[1], named[2]
        else:
            return TraceTarget(address=_address_or_name("--to", where, "NAMESPACE/SERVICE"), port=port or _PORT)
        spec = read_as(ApiService, self._get("--to", object_path(Kind.SERVICE, namespace, name))).spec
        ports = [entry.port for entry in spec.ports if entry.protocol.lower() == protocol]
        port = port or next(iter(ports), _PORT)
        selector = {"labelSelector": f"kubernetes.io/service-name={name}"}
        answer = self._get("--to", object_path(Kind.ENDPOINT_SLICE, namespace), selector)
        slices = [read_as(ApiEndpointSlice, item) for item in answer.get("items") or ()]
        ends = sorted(set(_endpoints(slices, _port_name(spec.ports, port, protocol), port)))
        if not ends:
            raise InputError("trace", "--to", f"Service {namespace}/{name} has no ready endpoint here")
        addresses = _ipv4(spec.cluster_ips) or _ipv4([spec.cluster_ip])
        if not addresses and spec.cluster_ip not in {"", "None"}:
            raise InputError("trace", "--to", f"Service {namespace}/{name} has no IPv4 address")
        return TraceTarget(
            address=addresses[0] if addresses else ends[0][0],
            port=port,
            name=f"{namespace}/{name}",
            choices=tuple(Choice(address=end, port=number, share=1 / len(ends)) for end, number in ends),
            by="kube-proxy",
        )

    def _node_of(self, address: str) -> str:
        if not self._file:
            return ""
        selector = {"fieldSelector": f"status.podIP={address_of('--from', address)}"}
        answer = self._get("--from", object_path(Kind.POD, ""), selector)
        pods = (read_as(ApiPod, item) for item in answer.get("items") or ())
        return next((pod.spec.node_name for pod in pods if not pod.status.is_finished), "")

    def _get(self, flag: str, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        from mcagent.kube.client import Client
        from mcagent.kube.errors import ApiRefusalError

        if not self._file:
            raise InputError("trace", flag, "a name needs a kubeconfig; give an address")
        client = Client(self._file, self._context)
        try:
            answer: Mapping[str, Any] = client.request("GET", path, query)
        except ApiRefusalError as error:
            if error.code == 404:
                raise InputError("trace", flag, f"there is no {_words(path)}") from None
            raise
        finally:
            client.close()
        return answer


def with_shares(target: TraceTarget, trace: NodeTrace, node: str) -> TraceTarget:
    """Return the target with the shares in the trace of a Node's agent, if there are any."""
    if not trace.shares:
        return target
    choices = tuple(
        Choice(address=IPv4Address(end.address), port=end.port, share=end.share) for end in trace.shares
    )
    return replace(target, choices=choices, by=f"the agent of {node}")


def _port_name(ports: Iterable[ApiServicePort], port: int, protocol: str) -> str | None:
    """Return the name of a Service's port, "" if it has none; None if there is no such port."""
    matching = (entry for entry in ports if entry.port == port and entry.protocol.lower() == protocol)
    return next((entry.name for entry in matching), None)


def _endpoints(
    slices: Iterable[ApiEndpointSlice], name: str | None, port: int
) -> Iterator[tuple[IPv4Address, int]]:
    """Yield the ready IPv4 endpoints with the port of this name (None: with `port`).

    An endpoint without the port gets no connections: of an imported Service, a cluster may not serve each port.
    """
    for slice_ in slices:
        ports = {entry.name: entry.port for entry in slice_.ports}
        if name is not None and name not in ports:
            continue
        number = (ports[name] if name is not None else None) or port
        for endpoint in slice_.endpoints:
            if endpoint.is_ready:
                yield from ((address, number) for address in _ipv4(endpoint.addresses))


def _ipv4(texts: Iterable[str]) -> list[IPv4Address]:
    """Return the IPv4 addresses in texts, without those of the other family and names."""
    return [address for text in texts if isinstance(address := address_or_none(text), IPv4Address)]


def _words(path: str) -> str:
    """Return kind, namespace and name of an object's path: "Pod default/web"."""
    *_, namespace, plural, name = path.split("/")
    return f"{plural.removesuffix('s').capitalize()} {namespace}/{name}"


def _address_or_name(flag: str, text: str, form: str) -> IPv4Address:
    """Parse an address where also a name is possible. Raises InputError with both forms."""
    try:
        return IPv4Address(text)
    except ValueError:
        raise InputError("trace", flag, f'must be {form} or an IPv4 address, is "{text}"') from None


def address_of(flag: str, text: str) -> IPv4Address:
    """Parse an IPv4 address. Raises InputError, which names the flag."""
    try:
        return IPv4Address(text)
    except ValueError:
        raise InputError("trace", flag, f'"{text}" is no IPv4 address') from None
