"""nftables: the agent's tables on the Node."""
