"""Tokens of members."""

from __future__ import annotations

import base64
import json
from typing import Any

from mcagent.controller.contract.member_tokens import RANDOM, anchor_name

ANCHOR = anchor_name("east", 3600, "a" * RANDOM)


def a_token(**claims: Any) -> str:
    """Return a token with claims; by default of account east, for an hour."""
    bound = {"namespace": "mcs", "serviceaccount": {"name": "east", "uid": "1"}, "secret": {"name": ANCHOR}}
    body = json.dumps({"iat": 9000, "exp": 12600, "kubernetes.io": bound} | claims).encode()
    return f"e30.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.c2ln"
