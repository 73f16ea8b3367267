"""`python -m devtools.realapi --listen ADDR:PORT --data DIR`: real API server processes under one parent."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from devtools.apiserver.__main__ import listen_address
from devtools.errors import LabError
from devtools.realapi.server import SERVICE_CIDR, RealApiServer


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Prints one line when ready. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.realapi", description=__doc__)
    parser.add_argument("--listen", type=listen_address, default=("127.0.0.1", 0), metavar="ADDR:PORT")
    parser.add_argument("--data", type=Path, required=True, help="directory of data, keys and logs")
    parser.add_argument("--kubeconfig", type=Path, help="where to write a kubeconfig for this server")
    parser.add_argument("--service-cidr", default=SERVICE_CIDR, help="of ClusterIPs [%(default)s]")
    parser.add_argument("--scheduler", type=Path, help="kube-scheduler: real Nodes are to join, so run everything")
    args = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with RealApiServer(
            args.data, *args.listen, service_cidr=args.service_cidr, scheduler=args.scheduler
        ) as server:
            if args.kubeconfig:
                server.write_kubeconfig(args.kubeconfig)
            sys.stdout.write(f"ready {server.url}\n")
            sys.stdout.flush()
            while not stop.wait(0.5):
                server.check()
    except (LabError, OSError) as err:
        sys.stderr.write(f"{err}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
