"""Parses the head of an HTTP/1.x request strictly (RFC 9112). Pure.

A request that two parsers could read differently is refused: two lengths, a transfer coding, folded lines, bare
line ends, spaces before a colon. Prometheus, kubelet and API servers send none of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_HEAD = 16 * 1024  # bytes of request line and headers: a ServiceAccount's token is 1 to 2 KiB
MAX_HEADERS = 64
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2047}) HTTP/1\.([01])")
# The value with the spaces around it: a pattern that told them apart would try each space as each of the three.
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}):([\t -~\x80-\xff]*)")
_SINGLE = frozenset({"authorization", "content-length", "host", "transfer-encoding"})


class BadRequestError(Exception):
    """The request is refused with the HTTP status `status`."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request without its body. Header names are in lower case."""

    method: str
    target: str  # as sent, with its query
    headers: Mapping[str, str]
    keeps: bool  # keep the connection open after the answer

    @property
    def path(self) -> str:
        """The target without its query, neither unquoted nor normalised: a page has one spelling."""
        return self.target.split("?", 1)[0]

    @property
    def query(self) -> str:
        """The text after the "?", as sent; "" without one."""
        return self.target.partition("?")[2]

    def length(self, limit: int) -> int:
        """Return the length of the body in bytes. Raises BadRequestError without a length, or above `limit`."""
        text = self.headers.get("content-length", "")
        if not (text.isascii() and text.isdigit()):
            raise BadRequestError("a body needs a Content-Length", 411)
        if len(text) > 16 or int(text) > limit:
            raise BadRequestError(f"the body is larger than {limit} bytes", 413)
        return int(text)


def parse_head(text: bytes) -> Head:
    """Parse the bytes before the empty line. Raises BadRequestError."""
    first, *lines = text.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise BadRequestError("the request line is not HTTP/1.1")
    if len(lines) > MAX_HEADERS:
        raise BadRequestError(f"more than {MAX_HEADERS} headers", 431)
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadRequestError("a header is malformed")
        name, value = header[1].decode("ascii").lower(), header[2].strip(b" \t").decode("latin-1")
        if name in headers and name in _SINGLE:
            raise BadRequestError(f"two headers {name}")
        headers[name] = value
    if "transfer-encoding" in headers:
        raise BadRequestError("a body needs a Content-Length", 411)
    connection = headers.get("connection", "").lower()
    keeps = "close" not in connection if request[3] == b"1" else "keep-alive" in connection
    return Head(method=request[1].decode(), target=request[2].decode(), headers=headers, keeps=keeps)
