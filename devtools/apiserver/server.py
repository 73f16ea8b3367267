"""`ApiServer`: an in-memory Kubernetes API server as one object, started and stopped from Python."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from ipaddress import IPv4Network
from pathlib import Path

from devtools.apiserver.access.accounts import ADMIN, Accounts, User
from devtools.apiserver.access.admission import Admission
from devtools.apiserver.connection import Listener
from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.faults import Faults
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import SERVICE_CIDRS, SERVICES
from devtools.apiserver.objects.services import ServiceAddresses
from devtools.apiserver.storage.store import Store
from devtools.apiserver.storage.writes import Backend
from devtools.errors import LabError
from devtools.lab.certificates import Identity

log = logging.getLogger(__name__)

# After a restart versions go on well above any that was given out after the last save.
_RESTART_GAP = 1_000_000


class ApiServer:
    """An API server on `host:port` (port 0: any free one).

    `data` names a file that keeps the objects over a restart (saved within a second of a change).
    `bookmark_interval` is in seconds; `history_limit` counts events kept per resource. `tokens`, when set, are
    the bearer tokens of administrators, beside those of ServiceAccounts; it may be replaced while the server runs.
    Without `tokens` who brings none is an administrator. All users may do everything. `service_cidr`: ClusterIPs
    are allocated from it (without: taken as they come). `requests` holds the last requests as (monotonic time,
    verb, path with query). Without `tls` the server speaks plain HTTP.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        data: Path | None = None,
        bookmark_interval: float = 10.0,
        history_limit: int = 10_000,
        tokens: frozenset[str] | None = None,
        tls: Identity | None = None,
        service_cidr: IPv4Network | None = None,
    ) -> None:
        self.registry = Registry()
        self.faults = Faults()
        self.tokens = tokens
        self.bookmark_interval = bookmark_interval
        self.stopping = threading.Event()
        self.requests: deque[tuple[float, str, str]] = deque(maxlen=10_000)
        self._host, self._port = host, port
        self._tls = tls
        self._data = data
        self._saved = -1
        self._listener: Listener | None = None
        self._threads: list[threading.Thread] = []
        saved = _load(data)
        addresses = ServiceAddresses(service_cidr) if service_cidr else None
        self.store = Store(
            self.registry,
            history_limit=history_limit,
            first_rv=saved["rv"] + _RESTART_GAP if saved else 1,
            namespaces=saved is None,
            addresses=addresses,
        )
        if saved:
            self.store.restore(saved["objects"])
        elif service_cidr:
            cidr = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [str(service_cidr)]}}
            self.store.create(SERVICE_CIDRS, "", cidr)
            spec = {
                "clusterIP": str(service_cidr[1]),
                "ports": [{"name": "https", "port": 443, "targetPort": 6443}],
            }
            self.store.create(SERVICES, "default", {"metadata": {"name": "kubernetes"}, "spec": spec})
        self.accounts = Accounts(self.store, tls.ca_text if tls else "")
        self.backend = Backend(store=self.store, accounts=self.accounts, admission=Admission(self.store))

    def authenticate(self, header: str) -> User:
        """Return whose token an Authorization header has. Raises ApiError 401 for an unknown token."""
        token = header.removeprefix("Bearer ").removeprefix("bearer ").strip()
        if token in (self.tokens or ()):
            return ADMIN
        if token and (user := self.accounts.authenticate(token)):
            return user
        if self.tokens is None:
            return ADMIN
        raise ApiError(401, "Unauthorized", "Unauthorized")

    @property
    def address(self) -> str:
        """Return "host:port" as clients write it."""
        return f"{self._host}:{self._port}"

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"{'https' if self._tls else 'http'}://{self.address}"

    def start(self) -> ApiServer:
        """Listen and serve. Returns self. Raises LabError when the address cannot be had."""
        self._listen()
        if self._data is not None:
            self._spawn(self._keep_saving, "apiserver-save")
        return self

    def stop(self) -> None:
        """Close everything; save what there is."""
        self.stopping.set()
        self._close()
        for thread in self._threads:
            thread.join(timeout=5)
        self._save()

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def refuse(self, refuse: bool = True) -> None:
        """Refuse connections and cut those there are; or, with False, accept them again."""
        if refuse:
            self._close()
        elif self._listener is None:
            self._listen()

    def drop_connections(self) -> int:
        """Cut every connection, watches included. Returns how many there were."""
        return self._listener.drop_connections() if self._listener else 0

    def note(self, verb: str, path: str) -> None:
        """Log a request."""
        self.requests.append((time.monotonic(), verb, path))

    def kubeconfig(self) -> Json:
        """Return a kubeconfig for this server, with the first of `tokens` where there are any."""
        trust = {"certificate-authority": str(self._tls.ca)} if self._tls else {}
        user: Json = {"token": sorted(self.tokens)[0]} if self.tokens else {}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.url, **trust}}],
            "users": [{"name": "lab", "user": user}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        }

    def write_kubeconfig(self, path: Path) -> None:
        """Write the kubeconfig, readable by its owner only, in one step."""
        _write(path, json.dumps(self.kubeconfig(), indent=2))

    def _listen(self) -> None:
        try:
            self._listener = Listener(
                (self._host, self._port), self, (self._tls.certificate, self._tls.key) if self._tls else None
            )
        except OSError as err:
            raise LabError(f"API server: cannot listen on {self.address}: {err.strerror}") from err
        self._port = int(self._listener.server_address[1])
        listener = self._listener
        self._spawn(lambda: listener.serve_forever(poll_interval=0.02), f"apiserver-{self._port}")

    def _spawn(self, target: object, name: str) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads = [old for old in self._threads if old.is_alive()] + [thread]

    def _close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()
            listener.drop_connections()

    def _keep_saving(self) -> None:
        while not self.stopping.wait(0.5):
            self._save()

    def _save(self) -> None:
        if self._data is None or self.store.rv == self._saved:
            return
        rv, objects = self.store.dump()
        try:
            _write(self._data, json.dumps({"rv": rv, "objects": objects}))
        except OSError as err:
            log.warning("cannot save %s: %s", self._data, err.strerror)
        else:
            self._saved = rv


def _write(path: Path, text: str) -> None:
    """Write a file in one step, readable by its owner only."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)


def _load(path: Path | None) -> Json | None:
    if path is None or not path.exists():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return {"rv": int(saved["rv"]), "objects": list(saved["objects"])}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise LabError(f"API server: {path} cannot be read: {err}") from err
