"""Exit codes, the same for all commands."""

from __future__ import annotations

from mcagent.model.errors import InputError, McagentError

OK = 0
FAILED = 1  # it was tried and did not work, or the answer is "no" (not ready, plan not empty with --exit-code)
USAGE = 2  # the command line, the configuration or the input is wrong: trying again cannot help
BUSY = 3  # another agent holds this Node
INTERRUPTED = 130  # by SIGINT

EXPLAINED = """\
exit codes:
  0    done
  1    it did not work, or the answer is no
  2    the command line, the configuration or the input is wrong
  3    another agent holds this Node
  130  interrupted"""


def of_error(error: McagentError | OSError) -> int:
    """Return the exit code for an error; an error may name its own in `exit_code`."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    return USAGE if isinstance(error, InputError) else FAILED
