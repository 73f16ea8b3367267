"""mcagent: Kubernetes multi-cluster networking for any CNI."""
