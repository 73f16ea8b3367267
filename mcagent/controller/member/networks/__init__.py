"""Networks and gateways: those of this cluster to the leader, those of other clusters to agents."""
