"""The exception tree. Everything that mcagent raises on purpose derives from `McagentError`.

Input errors name the object, the path of the field, and what would be right. Backend errors name the
backend, the operation and the object. Nothing here does I/O.
"""

from __future__ import annotations


class McagentError(Exception):
    """Base of every error that mcagent raises on purpose."""


class InputError(McagentError):
    """A value from outside (a manifest, a CR, the configuration) that cannot be used.

    `subject` is what holds the field ("ClusterInfoImport kube-system/east"), `path` the field inside it
    ("spec.podCIDRs[1]"), `reason` what is wrong and, where it helps, what would be right. `code` is the
    stable CamelCase word that a `Problem` made of it has as its reason.
    """

    def __init__(self, subject: str, path: str, reason: str, *, code: str = "InvalidValue") -> None:
        super().__init__(f"{subject}: {path}: {reason}" if path else f"{subject}: {reason}")
        self.subject = subject
        self.path = path
        self.reason = reason
        self.code = code


class BackendError(McagentError):
    """A facility of the Node (OVSDB, OpenFlow, netlink, nft, ...) refused or failed an operation.

    `retryable` is False where trying the same again cannot help until the input changes. `gone`: the process
    behind the facility does not run, so that what it held in memory is lost.
    """

    def __init__(
        self, backend: str, operation: str, obj: str, reason: str, *, retryable: bool = True, gone: bool = False
    ) -> None:
        super().__init__(f"{backend}: {operation} {obj}: {reason}")
        self.backend = backend
        self.operation = operation
        self.obj = obj
        self.reason = reason
        self.retryable = retryable
        self.gone = gone


class SourceError(McagentError):
    """The source of objects (an API server, a directory of manifests) cannot be read now."""
