"""The control plane of a ClusterSet."""
