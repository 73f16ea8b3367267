"""`RealApiServer`: etcd, kube-apiserver and kube-controller-manager as child processes in one directory.

Owns these processes and the directory: data, keys, certificates, logs. It must not know what is stored in them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devtools.errors import FatalError, LabError
from devtools.lab import certificates
from devtools.ports import free_port
from devtools.realapi.binaries import Binaries, require
from devtools.waiting import wait_until

SERVICE_CIDR = "10.96.0.0/16"
_LONGEST = 107  # bytes of a socket's path
START_TIMEOUT = 120.0  # seconds; idle machines need about five
# Of kube-controller-manager only what makes the API itself whole. No controller of Nodes, Pods, endpoints or
# garbage: a lab has no kubelet, and the lab writes EndpointSlices itself.
CONTROLLERS = ("namespace-controller", "serviceaccount-token-controller")
_LAB_FLAGS = ("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")
# With kubelets: Pods have tokens, and the Service "kubernetes" has endpoints. Not every Node's name resolves.
_NODES_FLAGS = ("--kubelet-preferred-address-types=InternalIP",)


class RealApiServer:
    """A real API server on `host:port` (port 0: any free one), with an etcd of its own in `directory`.

    `token` is an administrator's bearer token. `binaries`: default, those that are found (LabError if none).
    RBAC is on. Processes end with the thread that started them.

    `scheduler` is the program kube-scheduler of a cluster that has kubelets: then all controllers run. Without it,
    the admission plugin ServiceAccount is off, so that a Pod needs none, and of kube-controller-manager
    `controllers` run.
    """

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        service_cidr: str = SERVICE_CIDR,
        binaries: Binaries | None = None,
        flags: Sequence[str] = (),
        scheduler: Path | None = None,
        controllers: Sequence[str] = CONTROLLERS,
    ) -> None:
        self._directory, self._host, self._port = directory, host, port
        self._cidr, self._binaries, self._flags = service_cidr, binaries or require(), tuple(flags)
        self._scheduler, self._controllers = scheduler, tuple(controllers)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.token = ""

    @property
    def address(self) -> str:
        """Return "host:port"."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"https://{self.address}"

    @property
    def ca(self) -> Path:
        """Return the file of the certificate authority that clients trust."""
        return self._directory / "pki" / "ca.crt"

    @property
    def has_controllers(self) -> bool:
        """Tell whether a controller manager runs: namespaces end, tokens are written into Secrets."""
        return self._binaries.kube_controller_manager is not None

    def pids(self) -> dict[str, int]:
        """Return the processes that run, by program."""
        return {name: child.pid for name, child in self._children.items() if child.poll() is None}

    def start(self) -> RealApiServer:
        """Start all and return when the API server is ready. Raises LabError with the end of a log."""
        try:
            self._prepare()
            self.start_etcd()
            self.start_apiserver()
            if self._binaries.kube_controller_manager is not None:
                self._start_controllers(self._binaries.kube_controller_manager)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all. Objects stay in the directory for the next start."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self.stop_process(name)

    def __enter__(self) -> RealApiServer:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raises FatalError when a process has ended by itself."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise FatalError(f"{name} has ended ({child.returncode})\n{self._tail(name)}")

    def kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig of the administrator."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "lab", "user": {"token": self.token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        }

    def write_kubeconfig(self, path: Path) -> None:
        """Write the kubeconfig, readable by its owner only, in one step."""
        _write(path, json.dumps(self.kubeconfig(), indent=2))

    # --- one process after the other ----------------------------------------------------------------------

    def start_etcd(self) -> None:
        """Start etcd on a socket in the directory."""
        data = self._directory / "etcd"
        data.mkdir(mode=0o700, exist_ok=True)
        arguments = [f"--data-dir={data}", f"--listen-client-urls={self._etcd}"]
        arguments += ["--advertise-client-urls=http://127.0.0.1:0", "--listen-peer-urls=http://127.0.0.1:0"]
        arguments += ["--unsafe-no-fsync", "--log-level=warn"]  # what it keeps is worth nothing after a crash
        self._spawn("etcd", self._binaries.etcd, arguments)

    def start_apiserver(self) -> None:
        """Start kube-apiserver and return when it is ready."""
        pki = self._directory / "pki"
        arguments = [
            f"--etcd-servers={self._etcd}",
            f"--bind-address={self._host}",
            f"--advertise-address={self._host}",
            f"--secure-port={self._port}",
            f"--service-cluster-ip-range={self._cidr}",
            f"--tls-cert-file={pki / 'server.crt'}",
            f"--tls-private-key-file={pki / 'server.key'}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki / 'accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            *(_LAB_FLAGS if self._scheduler is None else _NODES_FLAGS),
            "--allow-privileged=true",
            "--profiling=false",
            *self._flags,
        ]
        self._spawn("kube-apiserver", self._binaries.kube_apiserver, arguments)
        wait_until(
            self._settled, f"kube-apiserver to be ready\n{self._tail('kube-apiserver')}", timeout=START_TIMEOUT
        )

    def _start_controllers(self, program: Path) -> None:
        pki = self._directory / "pki"
        self.write_kubeconfig(pki / "controllers.kubeconfig")
        common = [f"--kubeconfig={pki / 'controllers.kubeconfig'}", "--leader-elect=false", "--secure-port=0"]
        arguments = [
            *common,
            f"--controllers={','.join(self._controllers) if self._scheduler is None else '*'}",
            f"--service-account-private-key-file={pki / 'accounts.key'}",
            f"--root-ca-file={self.ca}",
            f"--flex-volume-plugin-dir={self._directory / 'volume-plugins'}",  # it makes the default in /usr
            "--profiling=false",
        ]
        self._spawn("kube-controller-manager", program, arguments)
        if self._scheduler is not None:
            self._spawn("kube-scheduler", self._scheduler, common)

    def stop_process(self, name: str) -> None:
        """End one of the processes: SIGTERM, and SIGKILL after two seconds (kube-apiserver waits for watches)."""
        child = self._children.pop(name, None)
        if child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2.0)
                return
        child.wait(timeout=10.0)

    @property
    def _etcd(self) -> str:
        return f"unix://{self._directory / 'etcd.sock'}"

    def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = self._directory.resolve()
        if len(self._etcd) > _LONGEST + len("unix://"):
            raise LabError(f"{self._directory}: too long a path for a socket in it (unix(7))")
        if not self._port:
            self._port = free_port(self._host)
        pki = self._directory / "pki"
        first = str(ipaddress.ip_network(self._cidr)[1])  # of Service "kubernetes", by which Pods come
        names = [self._host, first, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        certificates.server_identity(pki, names)
        certificates.signing_key(pki / "accounts.key", pki / "accounts.pub")
        tokens = pki / "tokens.csv"
        if not tokens.exists():
            _write(tokens, f'{secrets.token_urlsafe(32)},admin,admin,"system:masters"\n')
        self.token = tokens.read_text().partition(",")[0]

    def _spawn(self, name: str, program: Path, arguments: Sequence[str]) -> None:
        # The kernel ends the child when its parent dies in whatever way (prctl(2) PR_SET_PDEATHSIG).
        prefix = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with (self._directory / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [*prefix, str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=_environment(os.environ),
                start_new_session=True,
            )

    def _settled(self) -> bool:
        self.check()
        context = ssl.create_default_context(cafile=str(self.ca))
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _tail(self, name: str, lines: int = 12) -> str:
        path = self._directory / f"{name}.log"
        with contextlib.suppress(OSError):
            last = path.read_text(errors="replace").splitlines()[-lines:]
            return f"the end of {path}:\n" + "\n".join("  " + line[:300] for line in last)
        return f"{path} is not there"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the processes get: no proxy, no tuning of a Go runtime that was meant for another program.

    They collect garbage when their heap has grown fivefold (GOGC): a sixth less processor time, 100 MiB more each.
    """
    dropped = {"GOMAXPROCS", "GODEBUG", "KUBECONFIG"}
    inherited = {
        name: value
        for name, value in environment.items()
        if name not in dropped and not name.lower().endswith("_proxy") and not name.startswith("ETCD_")
    }
    return {**inherited, "GOGC": "400"}


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)
