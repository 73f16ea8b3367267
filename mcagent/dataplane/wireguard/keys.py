"""The key file with this Node's WireGuard key pairs.

Owns the file. It has the pair in use and, during a rotation, the next one. Private keys are passed only to
devices; the text forms of values do not contain them.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcagent.model.dataplane.backend import Backend
from mcagent.model.errors import BackendError

log = logging.getLogger(__name__)

KEY_LENGTH = 32  # bytes, private and public (RFC 7748)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A key pair; `public` is base64 text, `created` seconds since the epoch."""

    private: bytes = field(repr=False)
    public: str
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The key pairs of the key file."""

    current: KeyPair
    next: KeyPair | None = None  # announced, not yet in use

    def private_of(self, public: str) -> bytes | None:
        """Return the private key of a public one; None: it is not in the file."""
        pairs = (self.current, self.next)
        return next((pair.private for pair in pairs if pair is not None and pair.public == public), None)


class DamagedKeyFileError(BackendError):
    """The content of the key file is none: a machine that lost power may leave an empty one."""


class KeyStore:
    """The key file at `path`; its directory is created if missing.

    Several processes may use it (the agent, `mcagent wireguard rotate`): changes are atomic and made under a lock.
    Every method raises BackendError, not retryable, for a file that other users can read or own, and all but
    `ensure`, which makes another one, for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Keys | None:
        """Read the keys; None: there is no file yet."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error("read", error.strerror or str(error), retryable=True) from None
        with os.fdopen(descriptor, "rb") as file:
            self._check(os.fstat(descriptor))
            try:
                return _parse(file.read(1 << 16))
            except ValueError as error:
                subject = f"key file {self.path}"
                raise DamagedKeyFileError(
                    Backend.WIREGUARD, "read", subject, str(error), retryable=False
                ) from None

    def ensure(self, recover: Callable[[], bytes | None] = lambda: None) -> Keys:
        """Read the keys; generate the first pair if there is no file, or a damaged one, which is kept beside it.

        `recover` may return a private key in use, so that a lost file does not change the public key.
        """
        try:
            keys = self.load()
        except DamagedKeyFileError:
            keys = None
            self._set_aside()
        return keys or self._change(lambda keys: keys, recover)

    def prepare_next(self) -> Keys:
        """Generate the next pair, unless there is one."""
        return self._change(lambda keys: keys if keys.next is not None else replace(keys, next=_pair(_generate())))

    def drop_next(self) -> Keys:
        """Delete the next pair."""
        return self._change(lambda keys: replace(keys, next=None))

    def promote_next(self) -> Keys:
        """Replace the current pair by the next one. Raises BackendError without a next one."""

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

    def _set_aside(self) -> None:
        """Rename a damaged file; another process may have replaced it meanwhile."""
        with self._locked():
            try:
                self.load()
            except DamagedKeyFileError as error:
                damaged = self.path.with_name(f"{self.path.name}.damaged")
                try:
                    self.path.replace(damaged)
                except OSError as failure:
                    raise self._error("replace", failure.strerror or str(failure), retryable=True) from None
                log.error("%s: another one is made, and this one is now %s", error, damaged)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._error("read", "is not a regular file")
        if status.st_uid != os.geteuid():
            raise self._error("read", f"belongs to user {status.st_uid}, must belong to {os.geteuid()}")
        mode = stat.S_IMODE(status.st_mode)
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
        """Replace the file atomically: the new one is synced before it is renamed."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)  # left by a process that was killed here; this process has the lock
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
    """Compute the public key of a private one, as base64 text."""
    # imported on first use: an agent without encryption never loads it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return base64.b64encode(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()).decode()


def is_key(text: str) -> bool:
    """Return whether the text is a key in the format of wg(8)."""
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_LENGTH
    except (binascii.Error, ValueError):
        return False


def _generate() -> bytes:
    raw = bytearray(os.urandom(KEY_LENGTH))
    # RFC 7748, section 5; the kernel clamps keys like this, so a key read from it equals the one written
    raw[0] &= 248
    raw[31] = raw[31] & 127 | 64
    return bytes(raw)


def _pair(private: bytes) -> KeyPair:
    return KeyPair(private=private, public=public_key(private), created=time.time())


def _render(keys: Keys) -> bytes:
    values = {
        name: {"privateKey": base64.b64encode(pair.private).decode(), "created": pair.created}
        for name, pair in (("current", keys.current), ("next", keys.next))
        if pair is not None
    }
    return json.dumps(values, indent=2).encode() + b"\n"


def _parse(data: bytes) -> Keys:
    """Parse the file's content. Raises ValueError with a text that quotes nothing of it."""
    try:
        values = json.loads(data)
    except ValueError:
        raise ValueError("is damaged: no JSON") from None
    if not isinstance(values, dict) or not {"current"} <= values.keys() <= {"current", "next", "previous"}:
        raise ValueError('is damaged: has to hold an object with "current", and maybe "next"')
    values.pop("previous", None)  # written by earlier agents, not used
    pairs = {name: _parse_pair(name, value) for name, value in values.items()}
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
