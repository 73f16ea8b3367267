"""The API objects of a lab's clusters, as plain dicts: what kubelet, users and the control plane would write.

Pure. Owns nothing; `devtools.lab.api` writes them to the clusters' API servers.
"""

from __future__ import annotations

from collections.abc import Iterator

from devtools.lab.topology import Cluster, Node, Pod, Service, Topology

Json = dict[str, object]
NAMESPACE = "kube-system"  # of Gateway and ClusterInfoImport objects


def of_cluster(topology: Topology, cluster: Cluster) -> list[Json]:
    """Return everything that one cluster's API server holds, in an order fit for creation."""
    created: list[Json] = [node_object(node) for node in cluster.nodes]
    created += [pod_object(node, pod) for node in cluster.nodes for pod in node.pods]
    for service in cluster.services:
        created += [service_object(service), *endpoint_slices(topology, service)]
        if service.exported:
            created.append(export_object(service))
    created += imported_objects(topology, cluster)
    created += [gateway_object(cluster, node) for node in cluster.gateways]
    created += [import_object(other) for other in topology.clusters if other.name != cluster.name]
    return created


def node_object(node: Node) -> Json:
    """v1 Node."""
    cidrs = {"podCIDR": str(node.pod_cidr), "podCIDRs": [str(node.pod_cidr)]} if node.pod_cidr else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
        "spec": cidrs,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": str(node.tunnel_address)},
                {"type": "Hostname", "address": node.name},
            ],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod_object(node: Node, pod: Pod) -> Json:
    """v1 Pod, running."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": node.name, "containers": [{"name": "web", "image": "web"}]},
        "status": {
            "phase": "Running",
            "hostIP": str(node.tunnel_address),
            "podIP": str(pod.address),
            "podIPs": [{"ip": str(pod.address)}],
        },
    }


def _ports(service: Service) -> list[Json]:
    return [
        {"name": protocol.lower(), "protocol": protocol, "port": service.port, "targetPort": service.target_port}
        for protocol in service.protocols
    ]


def _slice_ports(service: Service, port: int) -> list[Json]:
    return [{"name": name.lower(), "protocol": name, "port": port} for name in service.protocols]


def service_object(service: Service) -> Json:
    """v1 Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": str(service.cluster_ip),
            "clusterIPs": [str(service.cluster_ip)],
            "selector": {"app": "web"},
            "ports": _ports(service),
        },
    }


def _slice(name: str, service: str, namespace: str, endpoints: list[Json], ports: list[Json]) -> Json:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }


def endpoint_slices(topology: Topology, service: Service) -> Iterator[Json]:
    """discovery.k8s.io/v1 EndpointSlice with all Pods of the Service ready."""
    endpoints: list[Json] = []
    for name in service.pods:
        _, node, pod = topology.pod(name)
        endpoints.append(
            {
                "addresses": [str(pod.address)],
                "nodeName": node.name,
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": name, "namespace": service.namespace},
            }
        )
    ports = _slice_ports(service, service.target_port)
    yield _slice(f"{service.name}-1", service.name, service.namespace, endpoints, ports)


def export_object(service: Service) -> Json:
    """multicluster.x-k8s.io/v1alpha1 ServiceExport."""
    return {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ServiceExport",
        "metadata": {"name": service.name, "namespace": service.namespace},
    }


def imported_objects(topology: Topology, cluster: Cluster) -> list[Json]:
    """The imported Services with their EndpointSlices, as Antrea's member controller makes them."""
    created: list[Json] = []
    for imported in topology.imports(cluster):
        service = imported.service
        raw = service_object(
            Service(
                name=imported.name,
                cluster_ip=imported.cluster_ip,
                pods=(),
                namespace=service.namespace,
                port=service.port,
                target_port=service.port,
                protocols=service.protocols,
            )
        )
        metadata, spec = raw["metadata"], raw["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        metadata["annotations"] = {"multicluster.antrea.io/imported-service": "true"}
        del spec["selector"]
        endpoints: list[Json] = [{"addresses": [str(a)], "conditions": {"ready": True}} for a in imported.backends]
        ports = _slice_ports(service, service.port)
        created += [raw, _slice(f"{imported.name}-1", imported.name, service.namespace, endpoints, ports)]
    return created


def gateway_object(cluster: Cluster, node: Node) -> Json:
    """multicluster.crd.antrea.io/v1alpha1 Gateway: fields at top level, the name is the Node's."""
    return {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "Gateway",
        "metadata": {"name": node.name, "namespace": NAMESPACE},
        "gatewayIP": str(node.tunnel_address),
        "internalIP": str(node.tunnel_address),
        "serviceCIDR": str(cluster.service_cidr),
    }


def import_object(cluster: Cluster) -> Json:
    """multicluster.crd.antrea.io/v1alpha1 ClusterInfoImport: how other clusters see this one."""
    spec: Json = {
        "clusterID": cluster.name,
        "serviceCIDR": str(cluster.service_cidr),
        "gatewayInfos": [{"gatewayIP": str(node.tunnel_address)} for node in cluster.gateways],
    }
    if cluster.publish_pods:
        spec["podCIDRs"] = [str(cluster.pod_cidr)]
    return {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "ClusterInfoImport",
        "metadata": {"name": f"{cluster.name}-clusterinfo", "namespace": NAMESPACE},
        "spec": spec,
    }


def wireguard_device(topology: Topology, cluster: Cluster, node: Node) -> str:
    """Return the name of a Node's WireGuard device: of its own, for wireguard-go's sockets know no namespaces."""
    return f"mc-wg{topology.clusters.index(cluster) + 1}-{cluster.nodes.index(node) + 1}"


def agent_config(
    topology: Topology,
    cluster: Cluster,
    node: Node,
    *,
    ovsdb: str,
    kubeconfig: str,
    run_directory: str,
    key_directory: str,
) -> Json:
    """Return the configuration of a Node's agent, as it goes into its YAML file.

    By default BFD does not adapt to the path: in a test kernel, and on a busy machine, round trips are so long
    that it would, and tests expect the configured detection time.
    """
    wireguard, bfd = cluster.config.get("wireGuard", {}), cluster.config.get("bfd", {})
    assert isinstance(wireguard, dict)
    assert isinstance(bfd, dict)
    device = wireguard_device(topology, cluster, node)
    return {
        "nodeName": node.name,
        "clusterID": cluster.name,
        "namespace": NAMESPACE,
        "enableGateway": True,
        "enablePodToPodConnectivity": cluster.publish_pods,
        "podCIDRs": [str(cluster.pod_cidr)],
        "tunnelType": str(topology.tunnel),
        "datapath": str(topology.datapath),
        "trafficEncryptionMode": str(topology.encryption),
        "wireGuard": {"keyDirectory": key_directory, "deviceName": device, **wireguard},
        "source": "kube",
        "kubeconfig": kubeconfig,
        "ovsdb": ovsdb,
        "listen": "127.0.0.1:10351",
        "runDirectory": run_directory,
        "resolvConf": "",  # this machine's resolver is none of the lab's
        "bfd": {**bfd, "remote": {"adapt": False, **bfd.get("remote", {})}},
        **{key: value for key, value in cluster.config.items() if key not in ("bfd", "wireGuard")},
    }
