"""The discovery of the cluster's UID, and of its Service CIDR if the configuration does not have it.

From Kubernetes 1.33 on the ServiceCIDR object "kubernetes" has it. Older API servers name it when they refuse a
Service with a ClusterIP outside of it; the request is a dry run, so no Service is created. Where neither says it,
the Gateways have the one that was discovered last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcagent.controller.contract.cluster_uid import is_uid
from mcagent.core.addresses.rules import refuse_network
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.api.kubernetes import ApiNamespace, ServiceCidr
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.net import network_or_none
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.decode import read_as

DEFAULT_NAME = "kubernetes"  # of the ServiceCIDR that the API server makes from its own flags
_RANGE = re.compile(r"The range of valid IPs is ([0-9a-fA-F:./, ]+)")


class UnknownCidrError(SourceError):
    """The API server responds without its Service CIDR. `passing`: its next response may have it."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


def discover_cluster_uid(client: Client) -> str:
    """Return the UID of Namespace kube-system; "" if it cannot be read. Raises SourceError without a response."""
    try:
        answer = client.request("GET", object_path(Kind.NAMESPACE, "", "kube-system"))
    except ApiRefusalError as err:
        if err.code not in (403, 404):
            raise
        return ""
    uid = read_as(ApiNamespace, answer).metadata.uid if isinstance(answer, dict) else ""
    return uid if is_uid(uid) else ""


def discover_service_cidr(client: Client, namespace: str = "default") -> str:
    """Return the IPv4 Service CIDR of a cluster.

    `namespace`: of the dry run. Raises UnknownCidrError, whose message names the key to configure, and
    SourceError if there is no response.
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
    body: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "mcagent-service-cidr", "namespace": namespace},
        "spec": {"clusterIP": "0.0.0.0", "ports": [{"port": 443}]},
    }
    try:
        client.request("POST", object_path(Kind.SERVICE, namespace), {"dryRun": "All"}, body=body)
    except ApiRefusalError as err:
        if err.code == 401:
            raise  # as of every other request
        cidr = cidr_in_refusal(str(err)) if err.code == 422 else None
        if cidr is not None:
            return cidr
        message = f"the Service CIDR cannot be detected: set serviceCIDR ({err})"
        raise UnknownCidrError(message, passing=err.code == 429 or err.code >= 500) from err
    raise UnknownCidrError("the Service CIDR cannot be detected: the API server took 0.0.0.0: set serviceCIDR")


def last_service_cidr(client: Client, namespace: str) -> str:
    """Return the IPv4 Service CIDR that the Gateways of a namespace have; "" without one.

    Raises SourceError if there is no response.
    """
    try:
        answer = client.request("GET", object_path(Kind.GATEWAY, namespace))
    except ApiRefusalError as err:
        if err.code not in (403, 404):
            raise
        return ""
    items = answer.get("items") if isinstance(answer, dict) else None
    raw = items if isinstance(items, list) else ()
    gateways = [read_as(ApiGateway, item) for item in raw if isinstance(item, dict)]
    # The annotation has the real one where the cluster has an export range.
    return first_ipv4(item.annotation(SERVICE_CIDR_ANNOTATION) or item.service_cidr for item in gateways) or ""


def cidr_in_refusal(text: str) -> str | None:
    """Return the first IPv4 CIDR in the refusal of a ClusterIP outside of it; None if there is none."""
    match = _RANGE.search(text)
    return first_ipv4(re.split(r"[, ]+", match.group(1))) if match else None


def first_ipv4(cidrs: Iterable[str]) -> str | None:
    """Return the first CIDR that can be routed to, in its canonical form."""
    for text in cidrs:
        network = network_or_none(text.strip(" ."))
        if network is not None and refuse_network(network) is None:
            return str(network)
    return None
