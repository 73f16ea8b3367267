"""The names that `mcagent trace` accepts: Pods and Services, resolved to addresses and endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any

from mcagent.api.trace import NodeTrace
from mcagent.model.errors import InputError

_SERVICE = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9-]{1,63})\.svc\.clusterset\.local\.?")
_NAMED = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")
IMPORTED = "antrea-mc-"  # prefix of the names of imported Services


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
            return address_of("--from", text), self._node_of(text)
        pod = self._get("--from", f"/api/v1/namespaces/{named[1]}/pods/{named[2]}")
        spec, status = pod.get("spec", {}), pod.get("status", {})
        return address_of("--from", status.get("podIP", "")), spec.get("nodeName", "")

    def target(self, where: str, port: int, protocol: str) -> TraceTarget:
        """Return the destination, for a Service with its ready endpoints. Raises InputError, SourceError."""
        service = _SERVICE.fullmatch(where)
        named = _NAMED.fullmatch(where)
        if service is not None:
            namespace, name = service[2], f"{IMPORTED}{service[1]}"
        elif named is not None:
            namespace, name = named[1], named[2]
        else:
            return TraceTarget(address=address_of("--to", where), port=port)
        spec = self._get("--to", f"/api/v1/namespaces/{namespace}/services/{name}").get("spec", {})
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        slices = (
            self._get("--to", path, {"labelSelector": f"kubernetes.io/service-name={name}"}).get("items") or []
        )
        ends = sorted(set(_endpoints(slices, _port_name(spec, port, protocol), port)))
        if not ends:
            raise InputError("trace", "--to", f"Service {namespace}/{name} has no ready endpoint here")
        cluster_ip = spec.get("clusterIP") or ""
        return TraceTarget(
            address=ends[0][0] if cluster_ip in {"", "None"} else address_of("--to", cluster_ip),
            port=port,
            name=f"{namespace}/{name}",
            choices=tuple(Choice(address=end, port=number, share=1 / len(ends)) for end, number in ends),
            by="kube-proxy",
        )

    def _node_of(self, address: str) -> str:
        if not self._file:
            return ""
        selector = {"fieldSelector": f"status.podIP={address_of('--from', address)}"}
        pods = self._get("--from", "/api/v1/pods", selector).get("items") or []
        return next((pod["spec"].get("nodeName", "") for pod in pods), "")

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
                raise InputError("trace", flag, f"there is no such object: {path}") from None
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


def _port_name(spec: Mapping[str, Any], port: int, protocol: str) -> str | None:
    """Return the name of a Service's port, "" if it has none; None if there is no such port."""
    for entry in spec.get("ports") or ():
        if entry.get("port") == port and entry.get("protocol", "TCP").lower() == protocol:
            return str(entry.get("name") or "")
    return None


def _endpoints(
    slices: Sequence[Mapping[str, Any]], name: str | None, port: int
) -> Iterator[tuple[IPv4Address, int]]:
    """Yield the ready endpoints with the port of this name, or with `port` if there is none."""
    for slice_ in slices:
        ports = {str(entry.get("name") or ""): entry.get("port") for entry in slice_.get("ports") or ()}
        for endpoint in slice_.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                for address in endpoint.get("addresses") or ():
                    yield address_of("--to", address), (ports.get(name) if name is not None else None) or port


def address_of(flag: str, text: str) -> IPv4Address:
    """Parse an IPv4 address. Raises InputError, which names the flag."""
    try:
        return IPv4Address(text)
    except ValueError:
        raise InputError("trace", flag, f'"{text}" is no IPv4 address') from None
