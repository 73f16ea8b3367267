"""Check `cidrs`: problems that the agent finds in networks of clusters."""

from __future__ import annotations

from mcagent.doctor.check import DoctorCheck
from mcagent.doctor.checks.problems import examine_problems

CHECK = DoctorCheck(
    name="cidrs", order=150, summary="networks of clusters that overlap each other, Pods, Services or Nodes"
)
examine = examine_problems(CHECK, "no network is refused")
