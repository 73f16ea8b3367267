"""Check `kubernetes` before the installation: the same as after it."""

from mcagent.doctor.checks.cluster.kubernetes import CHECK, examine

__all__ = ["CHECK", "examine"]
