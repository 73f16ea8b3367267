"""The key file: this Node's WireGuard key pairs, on disk and nowhere else.

Owns the file. It holds the pair in use and, during a rotation, the one to use next. Private keys leave it only for
a device; no text form of a value shows them.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcagent.model.errors import BackendError
from mcagent.model.resources import Backend

KEY_LENGTH = 32  # bytes, private and public (RFC 7748)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A key pair; `public` is base64 text, `created` seconds since the epoch."""

    private: bytes = field(repr=False)
    public: str
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the key file holds."""

    current: KeyPair
    next: KeyPair | None = None  # announced, not yet in use

    def private_of(self, public: str) -> bytes | None:
        """Return the private key of a public one, or None if it is none of ours."""
        pairs = (self.current, self.next)
        return next((one.private for one in pairs if one is not None and one.public == public), None)


class KeyStore:
    """The key file at `path`; its directory is made if missing.

    Several processes may use it (the agent, `mcagent wireguard rotate`): changes are made under a lock and appear
    whole. Every method raises BackendError, not retryable, for a file that others can read, that is another user's
    or cannot be understood: no new identity is made as long as there is a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Keys | None:
        """Return the keys, or None if there is no file yet."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error("read", error.strerror or str(error)) from None
        with os.fdopen(descriptor, "rb") as file:
            self._check(os.fstat(descriptor))
            try:
                return _parse(file.read(1 << 16))
            except ValueError as error:
                hint = "restore it, or remove it to get a new identity"
                raise self._error("read", f"{error}; {hint}") from None

    def ensure(self, recover: Callable[[], bytes | None] = lambda: None) -> Keys:
        """Return the keys, making the first pair if there is no file.

        `recover` is asked first for a private key that is in use already: a lost file is no new identity.
        """
        return self.load() or self._change(lambda keys: keys, recover)

    def prepare_next(self) -> Keys:
        """Make the pair to use next, unless there is one."""
        return self._change(lambda keys: keys if keys.next is not None else replace(keys, next=_pair(_generate())))

    def drop_next(self) -> Keys:
        """Forget the pair to use next."""
        return self._change(lambda keys: replace(keys, next=None))

    def promote_next(self) -> Keys:
        """Make the next pair the current one, and forget that. BackendError when there is no next."""

        def promote(keys: Keys) -> Keys:
            if keys.next is None:
                raise self._error("rotate", "there is no next key: prepare one first", retryable=False)
            return Keys(current=keys.next)

        return self._change(promote)

    # --- the file ---------------------------------------------------------------------------------------

    def _change(self, change: Callable[[Keys], Keys], recover: Callable[[], bytes | None] = lambda: None) -> Keys:
        with self._locked():
            before = self.load()
            after = change(before or Keys(current=_pair(recover() or _generate())))
            if after != before:
                self._write(after)
        return after

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._error("read", "is not a regular file")
        if found.st_uid != os.geteuid():
            raise self._error("read", f"belongs to user {found.st_uid}, must belong to {os.geteuid()}")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise self._error("read", f"has mode {mode:04o}, must have 0600: others may have read the key")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.path.with_name(f".{self.path.name}.lock")
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._error("lock", error.strerror or str(error)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, keys: Keys) -> None:
        """Replace the file by one that is whole on disk before it has the name."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)  # of a process that was killed here; the lock is ours
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_render(keys))
                file.flush()
                os.fsync(descriptor)
            new.rename(self.path)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._error("write", error.strerror or str(error), retryable=True) from None

    def _error(self, operation: str, reason: str, *, retryable: bool = False) -> BackendError:
        return BackendError(Backend.WIREGUARD, operation, f"key file {self.path}", reason, retryable=retryable)


def public_key(private: bytes) -> str:
    """Return the public key of a private one as base64 text."""
    # imported where it is needed: an agent without encryption never loads it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return base64.b64encode(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()).decode()


def is_key(text: str) -> bool:
    """Tell whether the text is a key as wg(8) writes it."""
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_LENGTH
    except (binascii.Error, ValueError):
        return False


def _generate() -> bytes:
    raw = bytearray(os.urandom(KEY_LENGTH))
    # RFC 7748, section 5; the kernel stores a key like this, so what it hands back equals what it was given
    raw[0] &= 248
    raw[31] = raw[31] & 127 | 64
    return bytes(raw)


def _pair(private: bytes) -> KeyPair:
    return KeyPair(private=private, public=public_key(private), created=time.time())


def _render(keys: Keys) -> bytes:
    found = {
        name: {"privateKey": base64.b64encode(pair.private).decode(), "created": pair.created}
        for name, pair in (("current", keys.current), ("next", keys.next))
        if pair is not None
    }
    return json.dumps(found, indent=2).encode() + b"\n"


def _parse(data: bytes) -> Keys:
    """Read the file's content. ValueError says what is wrong, without quoting anything of it."""
    try:
        found = json.loads(data)
    except ValueError:
        raise ValueError("is damaged: no JSON") from None
    if not isinstance(found, dict) or not {"current"} <= found.keys() <= {"current", "next", "previous"}:
        raise ValueError('is damaged: has to hold an object with "current", and maybe "next"')
    found.pop("previous", None)  # an earlier agent kept it; nothing needs it
    pairs = {name: _parse_pair(name, value) for name, value in found.items()}
    return Keys(current=pairs["current"], next=pairs.get("next"))


def _parse_pair(name: str, value: object) -> KeyPair:
    private = value.get("privateKey") if isinstance(value, dict) else None
    created = value.get("created") if isinstance(value, dict) else None
    if not isinstance(private, str) or not is_key(private):
        raise ValueError(f'is damaged: "{name}.privateKey" is no base64 text of {KEY_LENGTH} bytes')
    if not isinstance(created, int | float):
        raise ValueError(f'is damaged: "{name}.created" is no number')
    raw = base64.b64decode(private)
    return KeyPair(private=raw, public=public_key(raw), created=float(created))
