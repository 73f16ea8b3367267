"""Whom the names of `mcagent trace` mean: addresses of Pods, and endpoints that a Service's connections get."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from mcagent.cli.common.cluster_flags import usual_kubeconfig
from mcagent.model.errors import InputError

_SERVICE = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9-]{1,63})\.svc\.clusterset\.local\.?")
_NAMED = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")
IMPORTED = "antrea-mc-"  # what Services of imports are called


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An endpoint that new connections may get. `share`: in parts of 1."""

    address: IPv4Address
    port: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where packets are to go. `address` is a Service's if it has one; `by`: who chooses among the choices."""

    address: IPv4Address
    port: int
    name: str = ""
    choices: tuple[Choice, ...] = ()
    by: str = ""


class Objects:
    """What the API server knows of names; without a kubeconfig there are addresses only."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._file, self._context = args.kubeconfig or usual_kubeconfig(), args.context

    def source(self, who: str) -> tuple[IPv4Address, str]:
        """Return the address that is meant, and its Node ("" if not known). Raises InputError, SourceError."""
        named = _NAMED.fullmatch(who)
        if named is None:
            return address_of("--from", who), self._node_of(who)
        pod = self._get("--from", f"/api/v1/namespaces/{named[1]}/pods/{named[2]}")
        spec, status = pod.get("spec", {}), pod.get("status", {})
        return address_of("--from", status.get("podIP", "")), spec.get("nodeName", "")

    def target(self, where: str, port: int, protocol: str) -> Target:
        """Return where packets go, for a Service with its ready endpoints. Raises InputError, SourceError."""
        service = _SERVICE.fullmatch(where)
        named = _NAMED.fullmatch(where)
        if service is not None:
            namespace, name = service[2], f"{IMPORTED}{service[1]}"
        elif named is not None:
            namespace, name = named[1], named[2]
        else:
            return Target(address=address_of("--to", where), port=port)
        spec = self._get("--to", f"/api/v1/namespaces/{namespace}/services/{name}").get("spec", {})
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        slices = (
            self._get("--to", path, {"labelSelector": f"kubernetes.io/service-name={name}"}).get("items") or []
        )
        ends = sorted(set(_endpoints(slices, _port_name(spec, port, protocol), port)))
        if not ends:
            raise InputError("trace", "--to", f"Service {namespace}/{name} has no ready endpoint here")
        given = spec.get("clusterIP") or ""
        return Target(
            address=ends[0][0] if given in {"", "None"} else address_of("--to", given),
            port=port,
            name=f"{namespace}/{name}",
            choices=tuple(Choice(address=one, port=number, share=1 / len(ends)) for one, number in ends),
            by="kube-proxy",
        )

    def _node_of(self, address: str) -> str:
        if not self._file:
            return ""
        selector = {"fieldSelector": f"status.podIP={address_of('--from', address)}"}
        pods = self._get("--from", "/api/v1/pods", selector).get("items") or []
        return next((one["spec"].get("nodeName", "") for one in pods), "")

    def _get(self, flag: str, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        from mcagent.kube.client import Client
        from mcagent.kube.errors import ApiRefusalError

        if not self._file:
            raise InputError("trace", flag, "a name needs a kubeconfig; give an address")
        client = Client(self._file, self._context)
        try:
            found: Mapping[str, Any] = client.request("GET", path, query)
        except ApiRefusalError as error:
            if error.code == 404:
                raise InputError("trace", flag, f"there is no such object: {path}") from None
            raise
        finally:
            client.close()
        return found


def chosen(target: Target, walk: Mapping[str, Any], node: str) -> Target:
    """Return the target with the shares that a Node's agent gives its endpoints, if its page /trace says any."""
    shares = walk.get("shares") or ()
    if not shares:
        return target
    choices = tuple(
        Choice(address=IPv4Address(one["address"]), port=one["port"], share=one["share"]) for one in shares
    )
    return Target(
        address=target.address, port=target.port, name=target.name, choices=choices, by=f"the agent of {node}"
    )


def _port_name(spec: Mapping[str, Any], port: int, protocol: str) -> str | None:
    """Return the name of a Service's port, "" if it has none; None if there is no such port."""
    for one in spec.get("ports") or ():
        if one.get("port") == port and one.get("protocol", "TCP").lower() == protocol:
            return str(one.get("name") or "")
    return None


def _endpoints(
    slices: Sequence[Mapping[str, Any]], name: str | None, port: int
) -> Iterator[tuple[IPv4Address, int]]:
    """Yield the ready endpoints with the port of this name, else with the one that was asked for."""
    for one in slices:
        ports = {str(each.get("name") or ""): each.get("port") for each in one.get("ports") or ()}
        for endpoint in one.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                for address in endpoint.get("addresses") or ():
                    yield address_of("--to", address), (ports.get(name) if name is not None else None) or port


def address_of(flag: str, text: str) -> IPv4Address:
    """Return an address. Raises InputError."""
    try:
        return IPv4Address(text)
    except ValueError:
        raise InputError("trace", flag, f'"{text}" is no IPv4 address') from None
