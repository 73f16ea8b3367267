"""`python -m devtools.apiserver --listen ADDR:PORT`: the embedded API server as a process."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import threading
from ipaddress import IPv4Network
from pathlib import Path

from devtools.apiserver.server import ApiServer
from devtools.errors import LabError
from devtools.lab import certificates


def listen_address(text: str) -> tuple[str, int]:
    """Read "ADDR:PORT"."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"not ADDR:PORT: {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _tokens(path: Path | None) -> frozenset[str] | None:
    if path is None:
        return None
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
    return frozenset({path.read_text().strip()})


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Prints one line when ready. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.apiserver", description=__doc__)
    parser.add_argument("--listen", type=listen_address, default=("127.0.0.1", 0), metavar="ADDR:PORT")
    parser.add_argument("--data", type=Path, help="file that keeps the objects over a restart")
    parser.add_argument("--kubeconfig", type=Path, help="where to write a kubeconfig for this server")
    parser.add_argument("--history", type=int, default=10_000, metavar="EVENTS", help="events kept per resource")
    parser.add_argument("--service-cidr", type=IPv4Network, help="of ClusterIPs [none are allocated]")
    parser.add_argument("--tls", type=Path, metavar="DIRECTORY", help="speak HTTPS; where keys are kept")
    parser.add_argument("--token-file", type=Path, help="of the administrator's token; made if missing")
    args = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = ApiServer(
            *args.listen,
            data=args.data,
            history_limit=args.history,
            tokens=_tokens(args.token_file),
            tls=certificates.server_identity(args.tls, [args.listen[0], "localhost"]) if args.tls else None,
            service_cidr=args.service_cidr,
        ).start()
        if args.kubeconfig:
            server.write_kubeconfig(args.kubeconfig)
    except (LabError, OSError) as err:
        sys.stderr.write(f"{err}\n")
        return 1
    sys.stdout.write(f"ready {server.url}\n")
    sys.stdout.flush()
    stop.wait()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
