"""Failover: the liveness of gateways, flap damping, and draining a Node."""
