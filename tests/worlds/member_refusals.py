"""Answers to what a member claims, for tests of members."""

from __future__ import annotations

REFUSALS = [
    (
        "failed to allocate IP 0.0.0.0: it is not in the valid range. The range of valid IPs is 10.96.0.0/12",
        "10.96.0.0/12",
    ),
    ("The range of valid IPs is fd00::/108,10.43.0.0/16", "10.43.0.0/16"),
    ("The range of valid IPs is 10.96.0.0/12.", "10.96.0.0/12"),
    ("forbidden", None),
    ("The range of valid IPs is fd00::/108", None),
]
