"""This cluster as one of its Nodes sees it: gateways, Nodes, Pods, exported Services."""
