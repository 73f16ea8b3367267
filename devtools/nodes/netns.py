"""Network namespaces: made, wired, used and removed again.

Owns named namespaces (ip-netns(8)) and the veth pairs between them. Knows nothing of Open vSwitch,
clusters or agents. Never changes a device of the namespace that it is called from, except that a veth end
may be left there on request.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from devtools.errors import LabError
from devtools.waiting import slowness

T = TypeVar("T")

NETNS_DIRECTORY = Path("/run/netns")  # where ip-netns(8) keeps named namespaces
CLONE_NEWNET = 0x40000000  # setns(2)
COMMAND_TIMEOUT = 30.0  # seconds


def run(
    argv: Sequence[str],
    *,
    check: bool = True,
    timeout: float = COMMAND_TIMEOUT,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return it with its output as text.

    Raises LabError with the command's own words when it fails (and `check` is set), is not installed or takes
    longer than `timeout` seconds on an idle machine, or accordingly longer on a busy one.
    """
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env) as process:
            try:
                output, errors = process.communicate(stdin or "", timeout)
            except subprocess.TimeoutExpired:
                output, errors = _late(process, timeout * (slowness() - 1))
            except BaseException:  # a time limit of the caller: `with` would wait for the process
                process.kill()
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{' '.join(argv)}: {error}") from None
    if check and process.returncode:
        raise LabError(f"{' '.join(argv)}: {(errors or output).strip()} (status {process.returncode})")
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def _late(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Return what a late command prints, or end it after so many more seconds. Raises TimeoutExpired then."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def exists(name: str) -> bool:
    """Tell whether a namespace of that name exists."""
    return (NETNS_DIRECTORY / name).exists()


def create(name: str) -> None:
    """Make a namespace with its loopback up. Raises LabError if there is one of that name already."""
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])


def delete(name: str) -> None:
    """Remove a namespace and with it every device in it; nothing happens if there is none.

    Processes in it are not ended: who started them ends them first.
    """
    if exists(name):
        run(["ip", "netns", "delete", name])


def command(namespace: str, argv: Sequence[str]) -> list[str]:
    """Return the argument list that runs `argv` in a namespace; "" is the caller's own."""
    return ["ip", "netns", "exec", namespace, *argv] if namespace else list(argv)


def execute(
    namespace: str,
    argv: Sequence[str],
    *,
    check: bool = True,
    timeout: float = COMMAND_TIMEOUT,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a namespace to its end; see `run`."""
    return run(command(namespace, argv), check=check, timeout=timeout, stdin=stdin, env=env)


def ip(namespace: str, *args: str) -> str:
    """Run ip(8) on a namespace from outside (`ip -n`) and return its output; "" is the caller's own."""
    return run(["ip", *(["-n", namespace] if namespace else []), *args]).stdout


def ip_batch(namespace: str, lines: Sequence[str]) -> None:
    """Run many ip(8) commands, one a line without the leading "ip", in one process."""
    prefix = ["-n", namespace] if namespace else []
    run(["ip", *prefix, "-batch", "-"], stdin="\n".join(lines) + "\n")


def add_veth(name: str, namespace: str, peer: str, peer_namespace: str) -> None:
    """Make a veth pair: `name` in `namespace`, `peer` in `peer_namespace`, both up; "" is the caller's own."""
    argv = ["link", "add", name, *(["netns", namespace] if namespace else []), "type", "veth"]
    argv += ["peer", "name", peer, *(["netns", peer_namespace] if peer_namespace else [])]
    ip("", *argv)
    ip(namespace, "link", "set", name, "up")
    ip(peer_namespace, "link", "set", peer, "up")


def add_address(namespace: str, device: str, address: str) -> None:
    """Give a device an address ("10.0.0.1/24")."""
    ip(namespace, "address", "add", address, "dev", device)


def enter(namespace: str) -> None:
    """Move the calling thread, and no other, into a namespace. Raises LabError when it cannot.

    There is no way back that does not need an open file of the old one: use `call` for one function.
    """
    try:
        descriptor = os.open(NETNS_DIRECTORY / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"no network namespace {namespace}: {error}") from None
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
        if libc.setns(descriptor, CLONE_NEWNET):
            raise LabError(f"setns to {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def call(namespace: str, function: Callable[[], T], *, timeout: float = COMMAND_TIMEOUT) -> T:
    """Run a Python function in a namespace (in a thread of its own) and return or raise what it does.

    What it opens (sockets, netlink) belongs to that namespace for good and may be used outside afterwards.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            enter(namespace)
            results.append(function())
        except BaseException as error:  # noqa: BLE001  # handed on to the caller
            errors.append(error)

    thread = threading.Thread(target=body, name=f"netns-{namespace}", daemon=True)
    thread.start()
    thread.join(timeout)
    if errors:
        raise errors[0]
    if not results:
        raise LabError(f"a function in namespace {namespace} took longer than {timeout:g} s")
    return results[0]
