"""`python -m mcagent.lab.apiserver --listen ADDR:PORT`: the embedded API server as a process."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from mcagent.lab.apiserver.server import ApiServer
from mcagent.model.errors import LabError


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"not ADDR:PORT: {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Prints one line when ready. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mcagent.lab.apiserver", description=__doc__)
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), metavar="ADDR:PORT")
    parser.add_argument("--data", type=Path, help="file that keeps the objects over a restart")
    parser.add_argument("--kubeconfig", type=Path, help="where to write a kubeconfig for this server")
    parser.add_argument("--bookmark-interval", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--history", type=int, default=10_000, metavar="EVENTS", help="events kept per resource")
    args = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = ApiServer(
            *args.listen, data=args.data, bookmark_interval=args.bookmark_interval, history_limit=args.history
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
