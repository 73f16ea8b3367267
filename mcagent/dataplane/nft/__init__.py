"""nftables: the tables of the Node that are ours."""
