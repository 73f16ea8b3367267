"""Commands of an administrator of a ClusterSet."""
