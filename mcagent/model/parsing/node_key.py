"""The WireGuard key that a Node publishes for the other Nodes of its cluster: an annotation of the Node object.

Owns the annotation's form, which agents write and read. Must not know which Nodes are encrypted to.
"""

from __future__ import annotations

import json

from mcagent.model.objects import WireGuardInfo
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import Field

# JSON object with the fields of a Gateway's `wireGuard`: publicKey, nextPublicKey, port.
NODE_KEY_ANNOTATION = "mcagent.io/wireguard"
NODE_KEY_PATH = f"metadata.annotations.{NODE_KEY_ANNOTATION}"
MAX_TEXT = 1024  # characters that are read


def node_key_text(info: WireGuardInfo) -> str:
    """Return the annotation's value: the same for equal keys."""
    fields = {"publicKey": info.public_key, "nextPublicKey": info.next_public_key, "port": info.port}
    return json.dumps({name: value for name, value in fields.items() if value}, separators=(",", ":"))


def read_node_key(text: str, subject: str) -> WireGuardInfo | None:
    """Return what the Node `subject` publishes, None without a key. Raises InputError or ValueError."""
    if not text:
        return None
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text)} characters, at most {MAX_TEXT} allowed")
    try:
        fields = Field(subject, decode(text), NODE_KEY_PATH)
    except ValueError:
        raise ValueError("not JSON") from None
    key, port = fields.get("publicKey").public_key(), fields.get("port")
    if not key:
        return None
    return WireGuardInfo(
        public_key=key,
        next_public_key=fields.get("nextPublicKey").public_key(),
        port=0 if port.absent else port.port(),
    )
