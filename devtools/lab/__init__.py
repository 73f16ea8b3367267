"""Many Nodes and clusters on one machine, in network namespaces."""
