"""Clusters of real Kubernetes on one machine: control planes, kubelets, containerd, kube-proxy, CNIs."""
