"""WireGuard: the devices that encrypt traffic between clusters, their keys and their peers."""
