"""Removes secrets from the content of a bug report.

Objects keep only fields that are known to be needed (no foreign annotations, no managed fields). In texts,
tokens, private keys and passwords are hidden by their form, and so are WireGuard keys not known as public.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

HIDDEN = "[hidden]"
MAX_DEPTH = 64
_KINDS_NEVER = frozenset({"Secret", "SecretList", "ServiceAccount", "Config"})
_OUR_KEYS = ("mcagent.io/", "multicluster.antrea.io/", "multicluster.kubernetes.io/", "kubernetes.io/", "node.")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_META = frozenset(
    {"name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers"}
)
_SECRET_NAME = re.compile(
    r"token|passw|secret|psk|private|preshared|credential|authorization|cookie|client-key|api-?key|kubeconfig",
    re.I,
)
_PUBLIC_NAME = re.compile(r"public_?key$", re.I)
_TEXT = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{5,1000}(?:\.[A-Za-z0-9_-]*){1,2}"),  # a JWT: ServiceAccounts' tokens
    re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"),  # a bootstrap token
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.I)
_WORD = re.compile(r"[\w.-]+")
_SECRET_WORD = re.compile(r"token|passw|secret|psk|private[_-]?key|preshared|client-key|credential", re.I)
_URL_USER = re.compile(r"://[^\s/@:]{0,256}:[^\s/@]{1,256}@")  # http://user:password@proxy
_VALUE = re.compile(r"""\\?["']?\s*[:=]\s*("[^"\n]*"|'[^'\n]*'|\\"[^"\n]*"|[^\s,;}\]]+)""")  # after a word
_KEY = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{42}[AEIMQUYcgkosw480]=")  # 32 bytes in base64
_HEX_KEY = re.compile(r"\b(private_key|preshared_key)=[0-9a-fA-F]{64}")
_BLOB = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{200,}={0,2}")  # certificates, keys, configurations


def scrub_text(text: str, public: Collection[str] = ()) -> str:
    """Hide values in a text that have the form of a secret. `public`: WireGuard keys to keep."""
    for pattern in _TEXT:
        text = pattern.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _URL_USER.sub(f"://{HIDDEN}@", text)
    text = _HEX_KEY.sub(rf"\1={HIDDEN}", text)
    text = _hide_named_values(text, public)
    text = _KEY.sub(lambda match: match[0] if match[0] in public else HIDDEN, text)
    return _BLOB.sub(HIDDEN, text)


def _hide_named_values(text: str, public: Collection[str]) -> str:
    """Hide the values after words like "token" and ":" or "="; one pattern for all that would take cubic time."""
    parts: list[str] = []
    copied = 0
    for word in _WORD.finditer(text):
        if word.start() >= copied and _SECRET_WORD.search(word[0]) and (value := _VALUE.match(text, word.end())):
            parts += (text[copied : value.start(1)], _hidden_value(value[1], public))
            copied = value.end()
    return "".join((*parts, text[copied:]))


def _hidden_value(value: str, public: Collection[str]) -> str:
    return value if value.strip("\"'") in {"", "null", "None", "true", "false", "0", *public} else f'"{HIDDEN}"'


def scrub_value(value: Any, public: Collection[str] = (), depth: int = 0) -> Any:
    """Hide values in a JSON value that have the name or the form of a secret."""
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN
            if _SECRET_NAME.search(str(name)) and isinstance(item, str | bytes) and item
            else scrub_value(item, public, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub_value(item, public, depth + 1) for item in value]
    return scrub_text(value, public) if isinstance(value, str) else value


def scrub_object(obj: Mapping[str, Any], public: Collection[str] = ()) -> dict[str, Any] | None:
    """Reduce an object of the API to what may be shown; None for kinds with secrets."""
    if obj.get("kind") in _KINDS_NEVER:
        return None
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    scrubbed_meta = {name: meta[name] for name in sorted(_META & set(meta))}
    for part in ("labels", "annotations"):
        entries = meta.get(part)
        if isinstance(entries, Mapping):
            our_entries = {k: v for k, v in entries.items() if str(k).startswith(_OUR_KEYS) and k != _LAST_APPLIED}
            scrubbed_meta |= {part: our_entries} if our_entries else {}
    content = {
        name: item for name, item in obj.items() if name not in {"metadata", "data", "stringData", "binaryData"}
    }
    scrubbed = scrub_value({**content, "metadata": scrubbed_meta}, public)
    return dict(scrubbed)


def public_keys(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the values under names of public keys in objects or in /status."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, str) and _PUBLIC_NAME.search(str(name)) and _KEY.fullmatch(item):
                yield item
            else:
                yield from public_keys(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from public_keys(item, depth + 1)
