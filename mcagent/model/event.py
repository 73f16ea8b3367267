"""What becomes a Kubernetes Event: something that happened to an object, and that a person should know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Event:
    """Something that happened to an object. `subject` names it: "Node node-1", "Gateway kube-system/node-1"."""

    subject: str
    reason: str  # a stable CamelCase word
    message: str
    warning: bool = True  # else it is normal
