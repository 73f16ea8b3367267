"""Tells who sent a WireGuard handshake initiation that was sent to us. Pure.

The first message of Noise_IKpsk2 (WireGuard whitepaper, section 5.4.2) holds the sender's public key, encrypted
for the receiver, and a timestamp that only the owner of that key's private part can have encrypted.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from hashlib import blake2s
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

INITIATION_LENGTH = 148  # bytes
_CONSTRUCTION = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
_IDENTIFIER = b"WireGuard v1 zx2c4 Jason@zx2c4.com"
_LABEL_MAC1 = b"mac1----"
_NONCE = bytes(12)
_CHAIN = blake2s(_CONSTRUCTION).digest()
_HASH = blake2s(_CHAIN + _IDENTIFIER).digest()


def initiator(message: bytes, private_keys: Iterable[bytes]) -> str | None:
    """Return the public key of who sent the initiation, proven to be his; None if it is none for our keys."""
    if len(message) != INITIATION_LENGTH or message[:4] != b"\x01\0\0\0":
        return None
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    for private in private_keys:
        ours = X25519PrivateKey.from_private_bytes(private)
        public = ours.public_key().public_bytes_raw()
        mac = blake2s(message[:116], digest_size=16, key=blake2s(_LABEL_MAC1 + public).digest()).digest()
        if hmac.compare_digest(mac, message[116:132]):
            return _open(message, ours, public)
    return None


def _open(message: bytes, ours: X25519PrivateKey, public: bytes) -> str | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    ephemeral, static, timestamp = message[8:40], message[40:88], message[88:116]
    digest = blake2s(blake2s(_HASH + public).digest() + ephemeral).digest()
    chain = _kdf(_CHAIN, ephemeral)[0]
    try:
        chain, key = _kdf(chain, ours.exchange(X25519PublicKey.from_public_bytes(ephemeral)))
        theirs = ChaCha20Poly1305(key).decrypt(_NONCE, static, digest)
        _, key = _kdf(chain, ours.exchange(X25519PublicKey.from_public_bytes(theirs)))
        ChaCha20Poly1305(key).decrypt(_NONCE, timestamp, blake2s(digest + static).digest())
    except (InvalidTag, ValueError):  # ValueError: a point of small order
        return None
    return base64.b64encode(theirs).decode()


def _kdf(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the first two outputs of HKDF as WireGuard uses it."""
    secret = hmac.digest(key, data, "blake2s")
    first = hmac.digest(secret, b"\x01", "blake2s")
    return first, hmac.digest(secret, first + b"\x02", "blake2s")
