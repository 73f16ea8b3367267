"""The version of mcagent, from the metadata of the installed package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version; "0+unknown" when run from a tree that is not installed."""
    try:
        return metadata.version("mcagent")
    except metadata.PackageNotFoundError:
        return "0+unknown"
