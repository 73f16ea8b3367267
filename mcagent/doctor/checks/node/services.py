"""Check `services`: problems that the agent finds in exported Services."""

from __future__ import annotations

from mcagent.doctor.check import DoctorCheck
from mcagent.doctor.checks.problems import examine_problems

CHECK = DoctorCheck(name="services", order=160, summary="exported Services that are not served as written")
examine = examine_problems(CHECK, "all exported Services are served as written")
