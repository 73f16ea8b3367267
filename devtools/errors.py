"""What development tools raise, in the product's tree of errors."""

from __future__ import annotations

from mcagent.model.errors import McagentError


class LabError(McagentError):
    """The lab could not be built, used or taken down."""


class FatalError(LabError):
    """What no waiting will mend, as when the process that is waited for has ended."""
