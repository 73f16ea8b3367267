"""Finds the Service CIDR of the cluster when the configuration does not name it.

From Kubernetes 1.33 on the ServiceCIDR object "kubernetes" has it. Older API servers name it in the refusal of a
Service that asks for a ClusterIP outside of it; that Service is never created: the request is a dry run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mcagent.core.addresses.rules import refuse_network
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.api.kubernetes import ServiceCidr
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.net import parse_network
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

DEFAULT_NAME = "kubernetes"  # of the ServiceCIDR that the API server makes from its own flags
_RANGE = re.compile(r"The range of valid IPs is ([0-9a-fA-F:./, ]+)")


class UnknownCidrError(SourceError):
    """The API server answers, but does not tell its Service CIDR."""


def discover_service_cidr(client: Client, namespace: str = "default") -> str:
    """Return the IPv4 Service CIDR of a cluster.

    `namespace` is where the request is made that is refused. Raises UnknownCidrError, which says
    what to configure, and SourceError when there is no answer.
    """
    try:
        answer = client.request("GET", object_path(Kind.SERVICE_CIDR, "", DEFAULT_NAME))
    except ApiRefusalError as err:
        if err.code not in (403, 404):
            raise
        return _by_refusal(client, namespace)
    cidr = first_ipv4(read_as(ServiceCidr, answer).spec.cidrs if isinstance(answer, dict) else ())
    if cidr is None:
        raise UnknownCidrError("ServiceCIDR kubernetes has no IPv4 CIDR that can be used: set serviceCIDR")
    return cidr


def _by_refusal(client: Client, namespace: str) -> str:
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "mcagent-service-cidr", "namespace": namespace},
        "spec": {"clusterIP": "0.0.0.0", "ports": [{"port": 443}]},
    }
    try:
        client.request("POST", object_path(Kind.SERVICE, namespace), {"dryRun": "All"}, body=body)
    except ApiRefusalError as err:
        cidr = cidr_in_refusal(str(err)) if err.code == 422 else None
        if cidr is not None:
            return cidr
        raise UnknownCidrError(f"the Service CIDR cannot be detected: set serviceCIDR ({err})") from err
    raise UnknownCidrError("the Service CIDR cannot be detected: the API server took 0.0.0.0: set serviceCIDR")


def cidr_in_refusal(text: str) -> str | None:
    """Return the first IPv4 CIDR in what an API server says of a ClusterIP outside of it; None: it says none."""
    match = _RANGE.search(text)
    return first_ipv4(re.split(r"[, ]+", match.group(1))) if match else None


def first_ipv4(cidrs: Iterable[str]) -> str | None:
    """Return the first CIDR that can be routed to, in its canonical form."""
    for text in cidrs:
        try:
            network, _ = parse_network(text.strip(" ."))
        except ValueError:
            continue
        if refuse_network(network) is None:
            return str(network)
    return None
