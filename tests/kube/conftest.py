"""Every test here runs against the API servers of `tests.worlds.apiservers`."""

from tests.worlds.apiservers import (
    _servers,
    cluster,
    pytest_configure,
    pytest_generate_tests,
    pytest_terminal_summary,
    server,
)

__all__ = [
    "_servers",
    "cluster",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_terminal_summary",
    "server",
]
