"""A member's connection to its leader: client, informers, and how it is doing. A thread of its own.

It follows ClusterSet and Secret. Another leader means another connection and an empty cache. Other credentials are
used from the next request on, and watches continue; if the leader was away, informers are new, the cache stays.
Requests to a leader that is known to be away are not sent; a probe finds out when it is back. Knows not what
is read or written.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.commands import let_read_token
from mcagent.controller.contract.names import LABEL_SOURCE_CLUSTER_ID
from mcagent.controller.machinery.cache import Cache, SideSink
from mcagent.controller.machinery.connection.addresses import LeaderAddresses
from mcagent.controller.machinery.connection.membership import (
    LeaderCredentials,
    Membership,
    credentials,
    membership,
)
from mcagent.controller.machinery.connection.renewal import RenewalTiming, TokenRenewal
from mcagent.controller.machinery.connection.secret import SecretWatch
from mcagent.controller.machinery.reconciler import Leader, Side
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiUnreachableError
from mcagent.kube.source import RawObject
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.multicluster import ClusterClaim, ClusterSet
from mcagent.model.backoff import Backoff
from mcagent.model.errors import InputError, SourceError
from mcagent.model.informer_state import InformerState
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)


RETRY = Backoff(first=0.5, most=10.0)


class AwayError(SourceError):
    """The leader is known to be away: it is not even tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTiming:
    """How patient the connection is. Seconds."""

    probe_after: float = 15.0  # without any success; the heartbeat of a member is one every 10 s
    probe_timeout: float = 5.0
    retry: Backoff = RETRY  # between probes of a leader that is away
    look: float = 0.5  # at how the informers are doing
    informers: Timing = field(default_factory=Timing)
    renewal: RenewalTiming = field(default_factory=RenewalTiming)


class LeaderConnection(BackgroundLoop):
    """The connection of the member in `namespace`. `start`, then `stop`.

    `changed` is called, one call at a time, when `leader` is another value; its arguments are the old and the new
    one. `cache` must hold ClusterSets (and ClusterClaims, if the cluster has them). `permit` returns for how many
    seconds this replica may write: the Secret, when its token is renewed.
    """

    def __init__(
        self,
        local: Client,
        cache: Cache,
        namespace: str,
        changed: Callable[[Leader | None, Leader | None], None],
        *,
        permit: Callable[[], float] = lambda: float("inf"),
        timing: ConnectionTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache, self._namespace, self._changed = cache, namespace, changed
        self._timing, self._clock = timing or ConnectionTiming(), clock
        super().__init__(self._check, name="leader-connection", patience=self._timing.probe_timeout + 1.0)
        self._lock = threading.RLock()
        self._publishing = threading.Lock()  # so that changes are passed on in order
        self.leader: Leader | None = None  # None while there is no usable ClusterSet
        self.epoch = 0  # counts the leaders that were connected to
        self._membership: Membership | None = None
        self._credentials: LeaderCredentials | None = None
        self._client: Client | None = None
        self._sink: SideSink | None = None
        self._informers: list[Informer] = []
        self._failure = ""  # of requests
        self._problem = ""  # of ClusterSet or Secret
        self._succeeded = 0.0  # monotonic
        self._failures = 0  # of probes, in a row
        self._next_probe = 0.0  # monotonic
        self._addresses = LeaderAddresses(self.wake)
        self._renewal = TokenRenewal(local, namespace, permit, clock, self._timing.renewal)
        self._secret = SecretWatch(local, namespace, self.wake, self._timing.informers)

    # --- any thread ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Close the connection, within about a second."""
        super().stop()
        self._disconnect()
        self._secret.stop()

    def client(self, epoch: int) -> Client:
        """Return the client of the leader. Raises AwayError while it is away, or when it is another leader now."""
        with self._lock:
            leader, client = self.leader, self._client
            if epoch != self.epoch:
                raise AwayError("the ClusterSet has another leader now")
        if leader is None or client is None or not leader.connected:
            raise AwayError("the leader is away" + (f": {leader.error}" if leader and leader.error else ""))
        return client

    def request_ended(self, error: SourceError | None) -> None:
        """Learn from how a request went. A refusal of one object says nothing of the connection."""
        if error is None:
            self._succeeded = time.monotonic()
            return
        bad = isinstance(error, ApiUnreachableError | ApiGarbageError)
        if bad or (isinstance(error, ApiRefusalError) and error.code == 401):
            self._failure = str(error)
            self._publish()
            self.wake()

    def state(self) -> Sequence[InformerState]:
        """Return how reading goes, by kind."""
        with self._lock:
            return [informer.state() for informer in self._informers]

    # --- the thread ---------------------------------------------------------------------------------------

    def _check(self) -> float:
        is_new = self._follow()
        if is_new:
            self._next_probe = 0.0
        now = time.monotonic()
        connected = self.leader is not None and self.leader.connected
        is_quiet = is_new or not connected or now - self._succeeded >= self._timing.probe_after
        if self._client is not None and now >= self._next_probe and is_quiet:
            self._next_probe = now + self._probe(self._client)
        if self._client is not None and self._membership is not None and connected:
            self._renewal.step(self._client, self._membership.secret)
        self._publish()
        return self._timing.look

    def _probe(self, client: Client) -> float:
        """Ask the leader for something that every member may read. Returns when to ask again, in seconds."""
        assert self._membership is not None
        path = object_path(Kind.RESOURCE_IMPORT, self._membership.namespace)
        query = {"limit": "1", "resourceVersion": "0"}
        try:
            answer = client.request("GET", path, query, timeout=self._timing.probe_timeout)
            if not isinstance(answer, dict) or answer.get("kind") != "ResourceImportList":
                raise ApiGarbageError(f"{client.server}: the answer is no ResourceImportList")
        except SourceError as err:
            self._failure = str(err)
            self._failures += 1
            return self._timing.retry.delay(self._failures, random.random())  # noqa: S311 (spreads load)
        self._failure = ""
        self._succeeded = time.monotonic()
        self._failures = 0
        return 0.0

    def _follow(self) -> bool:
        """Make the connection that ClusterSet and Secret ask for. Returns whether it is another one now."""
        if self._cache.unsynced(Side.LOCAL) & {Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM}:
            return False
        try:
            target = membership(self._cache.list(ClusterSet, Side.LOCAL, self._namespace), self._claims())
        except InputError as err:
            self._say(str(err))
            target = None
        else:
            if target is None:
                self._say("")
        if target is None:
            return self._switch(None, None)
        if not self._secret.knows(target.secret):
            if self._secret.error and self._credentials is None:
                self._say(
                    f"Secret {self._namespace}/{target.secret} cannot be read: {self._secret.error}. "
                    f"If its Role is missing: {let_read_token(self._namespace, target.secret)}"
                )
                return self._switch(target, None)
            return False
        try:
            new_credentials = credentials(f"Secret {self._namespace}/{target.secret}", self._secret.secret)
        except InputError as err:
            if target.leaving and self._credentials is not None:
                new_credentials = self._credentials  # who leaves may have deleted the Secret already
            else:
                self._say(str(err))
                return self._switch(target, None)
        self._say("")
        return self._switch(target, new_credentials)

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem

    def _claims(self) -> Sequence[ClusterClaim]:
        if Kind.CLUSTER_CLAIM not in self._cache.kinds(Side.LOCAL):
            return ()
        return self._cache.list(ClusterClaim, Side.LOCAL, self._namespace)

    def _switch(self, target: Membership | None, new_credentials: LeaderCredentials | None) -> bool:
        same = _place(self._membership) == _place(target)
        if same and new_credentials == self._credentials:
            self._membership = target
            return False
        self._renewal.use(new_credentials.token if new_credentials is not None else "")
        if same and target is not None and new_credentials is not None and self._renewed(target, new_credentials):
            return True
        self._disconnect()
        if not same:
            with self._lock:
                self.epoch += 1
            # The empty cache must not be taken for the old leader's objects: first there is no leader.
            with self._publishing:
                old, self.leader, self._membership = self.leader, None, None
                self._cache.clear(Side.LEADER)
                if old is not None:
                    self._changed(old, None)
        self._membership, self._credentials = target, new_credentials
        self._failure, self._succeeded = "", 0.0
        self._failures = 0
        if target is None or new_credentials is None:
            return True
        try:
            client = Client(_kubeconfig(target, new_credentials), user_agent="mcagent-member")
        except SourceError as err:
            self._say(f"Secret {self._namespace}/{target.secret}: cannot be used: {err}")
            return True
        sink = self._cache.sink(Side.LEADER)
        informers = [
            Informer(
                kind,
                client,
                sink,
                namespace=target.namespace,
                label_selector=_selector(kind, target.cluster_id),
                timing=self._timing.informers,
                transform=read_object,
            )
            for kind in sorted(self._cache.kinds(Side.LEADER))
        ]
        with self._lock:
            self._client, self._sink, self._informers = client, sink, informers
        log.info("ClusterSet %s: leader %s at %s", target.cluster_set, target.leader_cluster_id, target.server)
        for informer in informers:
            informer.start()
        return True

    def _renewed(self, target: Membership, new_credentials: LeaderCredentials) -> bool:
        """Use other credentials in the present connection; return False if it is not connected."""
        if self._client is None or self.leader is None or not self.leader.connected:
            return False
        try:
            self._client.use(_kubeconfig(target, new_credentials))
        except SourceError:
            return False  # reported when a new client cannot be made of them
        self._membership, self._credentials = target, new_credentials
        return True

    def _disconnect(self) -> None:
        with self._lock:
            client, informers, sink = self._client, self._informers, self._sink
            self._client, self._informers, self._sink = None, [], None
        if sink is not None:
            sink.close()
        for informer in informers:
            informer.signal_stop()
        if client is not None:
            with suppress(OSError):
                client.close()

    # --- how it is ----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        with self._publishing:
            old = self.leader
            new = self._present(old)
            if new == old:
                return
            self.leader = new
            if new is not None and (old is None or old.connected != new.connected):
                if new.connected:
                    log.info("ClusterSet %s: connected to the leader", new.cluster_set)
                elif new.error:
                    log.warning("ClusterSet %s: the leader is away: %s", new.cluster_set, new.error)
            self._changed(old, new)

    def _present(self, old: Leader | None) -> Leader | None:
        target = self._membership
        if target is None:
            return None
        states = self.state()
        errors = [f"{state.kind}: {state.error}" for state in states if state.error]
        error = self._problem or self._failure or next(iter(errors), "")
        connected = self._client is not None and not error and self._succeeded > 0.0
        new = Leader(
            cluster_set=target.cluster_set,
            cluster_id=target.cluster_id,
            leader_cluster_id=target.leader_cluster_id,
            namespace=target.namespace,
            addresses=self._addresses.of(target.server),
            connected=connected,
            synced=bool(states) and all(state.synced for state in states),
            error=error,
            token=self._renewal.claims,
            token_error=self._renewal.error,
        )
        since = old.since if old is not None and old.connected == connected else self._clock()
        return replace(new, since=since)


def _selector(kind: Kind, cluster_id: str) -> str:
    """Return the labels of what is read of a kind: of exports only this cluster's, as leaders require them to be.

    Else every member would read what all the others export.
    """
    return f"{LABEL_SOURCE_CLUSTER_ID}={cluster_id}" if kind is Kind.RESOURCE_EXPORT else ""


def _kubeconfig(target: Membership, new_credentials: LeaderCredentials) -> RawObject:
    ca = b"" if target.server.startswith("http://") else new_credentials.ca
    return token_kubeconfig(target.server, ca, new_credentials.token)


def _place(found: Membership | None) -> Membership | None:
    """Return what makes a leader another one."""
    return None if found is None else replace(found, secret="", leaving=False)
