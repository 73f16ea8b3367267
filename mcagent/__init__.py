"""mcagent: Kubernetes multi-cluster networking for any CNI."""

__version__ = "0.1.0"
