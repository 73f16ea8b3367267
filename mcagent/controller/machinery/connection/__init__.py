"""A member's connection to the leader of its ClusterSet."""
