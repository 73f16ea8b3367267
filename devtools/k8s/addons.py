"""Objects that every cluster has beside Kubernetes' own: its Nodes, CoreDNS, and flannel or kube-router."""

from __future__ import annotations

from typing import Any

from devtools.k8s import images
from devtools.lab.topology import Cluster, Node

Json = dict[str, Any]
DNS_PLACE = 10  # of the DNS Service's address in the Service CIDR

COREFILE = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
}
"""
_COREDNS_MAY: list[Json] = [
    {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
_FLANNEL_MAY: list[Json] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]

_KUBE_ROUTER_MAY: list[Json] = [
    {
        "apiGroups": [""],
        "resources": ["namespaces", "pods", "services", "nodes", "endpoints"],
        "verbs": ["list", "get", "watch"],
    },
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "get", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "get", "watch"]},
]


def node(one: Node) -> Json:
    """Return a Node with its Pod CIDR, so that it is known before the kubelet runs."""
    cidr = str(one.pod_cidr)
    spec = {"podCIDR": cidr, "podCIDRs": [cidr]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": one.name}, "spec": spec}


def coredns(cluster: Cluster) -> list[Json]:
    """Return CoreDNS as kubeadm installs it, without a server for other names."""
    labels = {"k8s-app": "kube-dns"}
    ports = [("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"), ("metrics", 9153, "TCP")]
    container = {
        "name": "coredns",
        "image": images.COREDNS,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "ports": [{"name": name, "containerPort": port, "protocol": protocol} for name, port, protocol in ports],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    return [
        *_account("coredns", "kube-system", _COREDNS_MAY),
        _named("v1", "ConfigMap", "coredns", "kube-system", data={"Corefile": COREFILE}),
        _workload("Deployment", "coredns", "kube-system", labels, pod, replicas=1),
        _named(
            "v1",
            "Service",
            "kube-dns",
            "kube-system",
            spec={
                "clusterIP": str(cluster.service_cidr[DNS_PLACE]),
                "selector": labels,
                "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
            },
        ),
    ]


def flannel(cluster: Cluster, uplink: str) -> list[Json]:
    """Return flannel as its own manifest has it, with the Nodes' uplink named."""
    labels = {"app": "flannel"}
    network = f'{{"Network": "{cluster.pod_cidr}", "EnableNFTables": false, "Backend": {{"Type": "vxlan"}}}}'
    mounts = {"run": "/run/flannel", "xtables-lock": "/run/xtables.lock"}
    kinds = {"xtables-lock": "FileOrCreate"}  # the machine's own: iptables cannot lock a directory
    container = {
        "name": "kube-flannel",
        "image": images.FLANNEL,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--ip-masq", "--kube-subnet-mgr", f"--iface={uplink}", "--healthz-port=8081"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 2},
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/kube-flannel"},
            *({"name": name, "mountPath": path} for name, path in mounts.items()),
        ],
    }
    pod = {
        "hostNetwork": True,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "flannel",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "kube-flannel-cfg"}},
            *(
                {"name": name, "hostPath": {"path": path, "type": kinds.get(name, "")}}
                for name, path in mounts.items()
            ),
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-flannel"}},
        *_account("flannel", "kube-flannel", _FLANNEL_MAY),
        _named("v1", "ConfigMap", "kube-flannel-cfg", "kube-flannel", data={"net-conf.json": network}),
        _workload("DaemonSet", "kube-flannel-ds", "kube-flannel", labels, pod),
    ]


def kube_router() -> list[Json]:
    """Return kube-router as its own manifest (daemonset/generic-kuberouter.yaml) has it, without overlay.

    Its Service proxy is off, and the Nodes have its CNI configuration already.
    """
    labels = {"k8s-app": "kube-router", "tier": "node"}
    mounts = {"cni-conf-dir": "/etc/cni/net.d", "xtables-lock": "/run/xtables.lock"}
    kinds = {"xtables-lock": "FileOrCreate"}
    modes = ("--run-router=true", "--run-firewall=true", "--run-service-proxy=false", "--enable-overlay=false")
    container = {
        "name": "kube-router",
        "image": images.KUBE_ROUTER,
        "imagePullPolicy": "IfNotPresent",
        "args": [*modes, "--bgp-graceful-restart=true"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "KUBE_ROUTER_CNI_CONF_FILE", "value": "/etc/cni/net.d/10-pods.conflist"},
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 20244}, "periodSeconds": 2},
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    pod = {
        "hostNetwork": True,
        "hostPID": True,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "kube-router",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": kinds.get(name, "")}}
            for name, path in mounts.items()
        ],
    }
    return [
        *_account("kube-router", "kube-system", _KUBE_ROUTER_MAY),
        _workload("DaemonSet", "kube-router", "kube-system", labels, pod),
    ]


def _named(version: str, kind: str, name: str, namespace: str, **content: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **content}


def _workload(kind: str, name: str, namespace: str, labels: Json, pod: Json, **spec: Any) -> Json:
    template = {"metadata": {"labels": labels}, "spec": pod}
    return _named(
        "apps/v1", kind, name, namespace, spec={**spec, "selector": {"matchLabels": labels}, "template": template}
    )


def _account(name: str, namespace: str, may: list[Json]) -> list[Json]:
    """Return a ServiceAccount that may do this everywhere."""
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        _named("v1", "ServiceAccount", name, namespace),
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": may},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]
