"""The connection to ovsdb-server: a replica of the tables in use, transactions, and callbacks for changes.

Owns the IDL of python-ovs, which is not thread-safe: one lock guards it. Does not know the meaning of rows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ovs.poller
from ovs.db import idl as ovs_idl

from mcagent.dataplane.ovsdb import json_stream
from mcagent.dataplane.ovsdb.rows import SCHEMA
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

ANSWER_TIMEOUT = 5.0  # seconds for any answer of ovsdb-server
RECONNECT_MAX = 1000  # milliseconds between attempts
RECONNECT_MIN = 100

# Called with the lock held after a change; True: the connection was lost or established again. The returned
# functions are called without the lock.
OnUpdate = Callable[[bool], Iterable[Callable[[], None]]]

# In every transaction, because python-ovs does not send one without operations.
_NOWHERE = ["_uuid", "==", ["uuid", str(uuid.UUID(int=0))]]
_NOTHING = {"op": "select", "table": "Open_vSwitch", "where": [_NOWHERE], "columns": ["cur_cfg"]}


class Replica(ovs_idl.Idl):  # type: ignore[misc]  # python-ovs has no type hints
    """The IDL, with rows by name. `forget` is called with the UUID of every row that changes."""

    def __init__(self, remote: str) -> None:
        json_stream.install()
        helper = ovs_idl.SchemaHelper(schema_json=SCHEMA)
        helper.register_all()
        super().__init__(remote, helper, leader_only=False)
        self._session.reconnect.set_backoff(RECONNECT_MIN, RECONNECT_MAX)
        self.remote = remote
        self.forget: Callable[[uuid.UUID], None] = lambda _: None
        self._named: dict[tuple[str, str], Any] = {}

    def notify(self, event: str, row: Any, updates: Any = None) -> None:  # noqa: ARG002
        """Record a changed row; python-ovs calls this from `run`."""
        self.forget(row.uuid)
        if event == ovs_idl.ROW_CREATE and "name" in row._table.columns:
            self._named[row._table.name, row.name] = row  # names never change

    def find(self, table: str, name: str) -> Any:
        """Return the row of that name; None: there is none."""
        row = self._named.get((table, name))
        if row is not None and self.tables[table].rows.get(row.uuid) is not row:
            del self._named[table, name]  # the row was deleted, perhaps while there was no connection
            return None
        return row

    @property
    def root(self) -> Any:
        """The one row of table Open_vSwitch. Raises BackendError if the database was never initialised."""
        for row in self.tables["Open_vSwitch"].rows.values():
            return row
        reason = "the database is empty: it has no row in table Open_vSwitch"
        raise BackendError("ovsdb", "read", self.remote, reason)

    @property
    def session(self) -> int:
        """Sequence number of the present connection; 0: not connected."""
        connected = self.state == self.IDL_S_MONITORING and self._session.is_connected()
        return self._session.get_seqno() if connected else 0


class OvsdbConnection:
    """A connection to the Open_vSwitch database at "unix:PATH", which reconnects by itself.

    A thread holds `lock` while it reads `replica` or calls `transact` and `wait_configured`.
    """

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.lock = threading.RLock()
        self.replica = Replica(remote)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Hold the lock with an up-to-date replica. Raises BackendError if the server cannot be reached."""
        with self.lock:
            try:
                self._connect()
                # The server answers in order: after this answer the replica has every earlier change.
                refusal, _ = self.transact(lambda _: None)
                if refusal is not None:
                    raise self._error("read", refusal)
                yield
            finally:
                # The watcher may wait for an outdated file descriptor or time.
                os.eventfd_write(self._wake, 1)

    def transact(self, change: Callable[[Any], bool | None]) -> tuple[str | None, int]:
        """Commit the changes that `change` makes in its transaction, all or none.

        If it returns True, ovs-vswitchd is asked to apply the configuration (column next_cfg). Returns the
        server's error message (None: success), and the number for `wait_configured`. Raises BackendError when the
        server cannot be reached.
        """
        transaction = ovs_idl.Transaction(self.replica)
        try:
            transaction.add_op(_NOTHING)
            configure = change(transaction)
            if configure:
                self.replica.root.increment("next_cfg")
            transaction.commit()  # sends it; later calls return the state
            if not self._run_until(lambda: transaction.commit() != transaction.INCOMPLETE, ANSWER_TIMEOUT):
                raise self._error("commit", f"no answer in {ANSWER_TIMEOUT:g} s")
        finally:
            transaction.abort()  # no effect after the end
        status = transaction.commit()
        if status == ovs_idl.Transaction.TRY_AGAIN:
            raise self._error("commit", "the connection was lost meanwhile")
        if status != ovs_idl.Transaction.SUCCESS:
            return str(transaction.get_error()), 0
        return None, transaction.get_increment_new_value() if configure else 0

    def wait_configured(self, number: int, timeout: float) -> bool:
        """Wait until ovs-vswitchd has applied configuration `number`; False after `timeout` seconds."""
        return self._run_until(lambda: self.replica.root.cur_cfg >= number, timeout)

    def watch(self, on_update: OnUpdate) -> None:
        """Start the thread that keeps the replica up to date and reports changes. Call this once."""
        self._watcher = Supervised(self._watch, args=(on_update,), name="ovsdb")
        self._watcher.start()

    def close(self) -> None:
        """End the thread and the connection."""
        self._closed = True
        os.eventfd_write(self._wake, 1)
        if self._watcher is not None:
            self._watcher.join(ANSWER_TIMEOUT)
        with self.lock:
            self.replica.close()
            os.close(self._wake)

    def _error(self, operation: str, reason: str) -> BackendError:
        return BackendError("ovsdb", operation, self.remote, reason)

    def _connect(self) -> None:
        self._run()
        if self.replica.session:
            return
        # The IDL waits between attempts and does not report errors: connect to the socket to get the error.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_TIMEOUT)
            try:
                probe.connect(self.remote.removeprefix("unix:"))
            except OSError as error:
                raise self._error("connect", error.strerror or str(error)) from None
        if not self._run_until(lambda: self.replica.session, ANSWER_TIMEOUT):
            raise self._error("connect", f"no answer in {ANSWER_TIMEOUT:g} s")

    def _run(self) -> None:
        while self.replica.run():
            pass

    def _run_until(self, condition: Callable[[], object], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self._run()
            if condition():
                return True
            if time.monotonic() > deadline:
                return False
            poller = ovs.poller.Poller()
            self.replica.wait(poller)
            poller.timer_wait(max(0, int((deadline - time.monotonic()) * 1000)) + 1)
            poller.block()

    def _watch(self, on_update: OnUpdate) -> None:
        state: tuple[int, int] | None = None
        while not self._closed:
            with self.lock:
                self._run()
                before, state = state, (self.replica.session, self.replica.change_seqno)
                callbacks = on_update(before is None or before[0] != state[0]) if state != before else ()
                poller = ovs.poller.Poller()
                self.replica.wait(poller)
            for callback in callbacks:
                callback()
            poller.fd_wait(self._wake, ovs.poller.POLLIN)
            poller.block()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
