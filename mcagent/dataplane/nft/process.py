"""Runs the nft binary, and says of a table what it answered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from mcagent.model.errors import BackendError
from mcagent.model.resources import Backend

TIMEOUT = 30.0  # seconds; 10,000 elements take 0.15 s
_NO_TABLE = ("No such file or directory", "Address family not supported")  # the second: a kernel without IPv6


@dataclass(frozen=True, slots=True)
class Table:
    """A table of nft: the family ("ip" or "ip6", of which its sets hold addresses), its name, and who is asked."""

    family: str
    name: str
    binary: str = "nft"

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def list(self, *flags: str) -> str | None:
        """Return what `nft list table` says with these flags, or None if there is no such table.

        Raises BackendError when nft cannot be run.
        """
        code, stdout, stderr = self.run([*flags, "list", "table", self.family, self.name])
        if code == 0:
            return stdout
        if any(words in stderr for words in _NO_TABLE):
            return None
        raise self.error("list", "", nft_words(stderr))

    def run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        """Return status, output and errors of nft. Raises BackendError when it cannot be run."""
        try:
            code, stdout, stderr = run_nft(arguments, stdin, binary=self.binary)
        except OSError as error:
            raise self.error("run", "", str(error)) from None
        if code and "cache initialization failed" in stderr:
            raise self.error("run", "", nft_words(stderr))  # no permission, or a kernel without nf_tables
        return code, stdout, stderr

    def error(self, operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
        """Return the error of an operation on an object of this table ("" for the table itself)."""
        return BackendError(Backend.NFT, operation, f"table {self} {obj}".rstrip(), reason, retryable=retryable)


def run_nft(arguments: Sequence[str], stdin: str = "", *, binary: str = "nft") -> tuple[int, str, str]:
    """Run nft in this thread's namespace; return status, output and errors. Raises OSError when it cannot."""
    try:
        done = subprocess.run(
            [binary, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise OSError(f"there is no {binary}: install nftables") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    return done.returncode, done.stdout, done.stderr


def nft_words(stderr: str) -> str:
    """Return nft's own words, without the picture of the line it draws below them."""
    lines = [line for line in stderr.splitlines() if "Error:" in line]
    return "; ".join(lines) or stderr.strip() or "failed without a word"
