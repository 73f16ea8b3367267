"""Check `pod-routing`: Pods outside of their Nodes' Pod CIDRs that the agent finds behind exported Services."""

from __future__ import annotations

from mcagent.doctor.checks.cluster.pod_routing import CHECK
from mcagent.doctor.checks.problems import examine_problems

examine = examine_problems(CHECK, "no endpoint of an exported Service is outside of its Node's Pod CIDRs")

__all__ = ["CHECK", "examine"]
