"""Check `input`: problems that the agent finds in objects and configuration."""

from __future__ import annotations

from mcagent.doctor.check import DoctorCheck
from mcagent.doctor.checks.problems import examine_problems

CHECK = DoctorCheck(name="input", order=170, summary="objects and configuration that cannot be used as written")
examine = examine_problems(CHECK, "all objects are used as written")
