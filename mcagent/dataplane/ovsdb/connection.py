"""The connection to ovsdb-server: a replica of the tables we use, transactions, and events of changes.

Owns the IDL of python-ovs, which is not thread-safe: everything goes through one lock. Knows nothing of
what the rows mean.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ovs.poller
from ovs.db import idl as ovs_idl

from mcagent.dataplane.ovsdb import json_stream
from mcagent.dataplane.ovsdb.rows import SCHEMA
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

ANSWER_TIMEOUT = 5.0  # seconds for ovsdb-server to answer anything
RECONNECT_MAX = 1000  # milliseconds between attempts
RECONNECT_MIN = 100
PROBE_INTERVAL = 5000  # milliseconds of silence before ovsdb-server is asked whether it still lives
WATCH_RETRY = 30.0  # seconds: an upper bound of one wait; everything expected wakes it earlier

Judge = Callable[[set[str]], Iterable[Callable[[], None]]]
Operation = dict[str, Any]  # one of a "transact" request (RFC 7047, section 5.2)

_NOWHERE = ["_uuid", "==", ["uuid", "00000000-0000-0000-0000-000000000000"]]
_NOTHING: Operation = {"op": "select", "table": "Open_vSwitch", "where": [_NOWHERE], "columns": ["cur_cfg"]}


class _Replica(ovs_idl.Idl):  # type: ignore[misc]  # python-ovs has no type hints
    """The IDL, which notes what changed and finds rows by name."""

    def __init__(self, remote: str) -> None:
        json_stream.install()
        helper = ovs_idl.SchemaHelper(schema_json=SCHEMA)
        helper.register_all()
        super().__init__(remote, helper, probe_interval=PROBE_INTERVAL, leader_only=False)
        self._session.reconnect.set_backoff(RECONNECT_MIN, RECONNECT_MAX)
        self.touched: set[str] = set()
        self.forget: Callable[[uuid.UUID], None] = lambda _: None
        self._named: dict[tuple[str, str], Any] = {}

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Take note of a changed row; python-ovs calls this from `run`."""
        table = row._table.name
        # `updates` is a row with the old values of the columns that changed, and of no others.
        columns = updates._data if event == ovs_idl.ROW_UPDATE else ()
        self.touched.update([f"{table}.{column}" for column in columns] or [table])
        self.forget(row.uuid)
        if event == ovs_idl.ROW_CREATE and "name" in row._table.columns:
            self._named[table, row.name] = row  # names never change

    def find(self, table: str, name: str) -> Any:
        """Return the row of that name or None."""
        row = self._named.get((table, name))
        if row is not None and self.tables[table].rows.get(row.uuid) is not row:
            del self._named[table, name]  # the row went away, perhaps while there was no connection
            return None
        return row

    @property
    def synced(self) -> bool:
        """Whether the replica is that of a living connection."""
        return bool(self.state == self.IDL_S_MONITORING and self._session.is_connected())

    @property
    def session_number(self) -> int:
        """A number that changes with every connection."""
        return int(self._session.get_seqno())


class OvsdbConnection:
    """A connection to the Open_vSwitch database at "unix:PATH", reconnecting by itself."""

    def __init__(self, remote: str) -> None:
        if not remote.startswith("unix:"):
            raise BackendError(
                "ovsdb", "connect", remote, 'not a Unix socket: "unix:PATH" is meant', retryable=False
            )
        self.remote = remote
        self.lock = threading.RLock()
        self._idl = _Replica(remote)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watcher: threading.Thread | None = None
        self._closed = False

    def rows(self, table: str) -> Iterable[Any]:
        """Return the replicated rows of a table; hold the lock while using them."""
        return self._idl.tables[table].rows.values()  # type: ignore[no-any-return]

    def find(self, table: str, name: str) -> Any:  # a row of the IDL
        """Return the replicated row of that name, or None; hold the lock while using it."""
        return self._idl.find(table, name)

    def on_row(self, forget: Callable[[uuid.UUID], None]) -> None:
        """Call `forget` with the UUID of every row that was made, changed or removed, with the lock held."""
        self._idl.forget = forget

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Hold the lock with a replica that is as new as the server. Raises BackendError if it is away."""
        with self.lock:
            try:
                self._connect()
                self._barrier()
                yield
            finally:
                self._poke()

    def transact(self, operations: Sequence[Operation], *, configure: bool) -> tuple[str | None, int]:
        """Commit operations at once, all or none.

        With `configure`, ovs-vswitchd is asked to configure itself anew (column next_cfg). Returns the
        server's words if it refused, else None; and the number that `wait_configured` takes. Raises
        BackendError when the server cannot be reached.
        """
        transaction = ovs_idl.Transaction(self._idl)
        try:
            for operation in operations or [_NOTHING]:  # python-ovs sends no transaction without an operation
                transaction.add_op(operation)
            if configure:
                self._root().increment("next_cfg")
            transaction.commit()  # sends it; from then on it only returns how it goes
            if not self._run_until(lambda: transaction.commit() != transaction.INCOMPLETE, ANSWER_TIMEOUT):
                raise self._error("commit", f"no answer in {ANSWER_TIMEOUT:g} s")
            status = transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        if status == ovs_idl.Transaction.TRY_AGAIN:
            raise self._error("commit", "the connection was lost meanwhile")
        if status not in (ovs_idl.Transaction.SUCCESS, ovs_idl.Transaction.UNCHANGED):
            return str(transaction.get_error()), 0
        return None, transaction.get_increment_new_value() if configure else 0

    def wait_configured(self, number: int, timeout: float) -> bool:
        """Wait until ovs-vswitchd has taken the configuration of that number; False after `timeout` seconds."""
        return self._run_until(lambda: self._root().cur_cfg >= number, timeout)

    def watch(self, judge: Judge) -> None:
        """Keep the replica up to date in a thread from now on, and report changes.

        `judge` gets what changed, with the lock held: "Table" for rows that were made or removed, "Table.column",
        "" for a connection lost or made again. What it returns is called without the lock.
        """
        if self._watcher is not None:
            raise RuntimeError("watched already")
        self._watcher = Supervised(self._watch, args=(judge,), name="ovsdb")
        self._watcher.start()

    def close(self) -> None:
        """End the thread and the connection."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
        self._poke()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(ANSWER_TIMEOUT)
        with self.lock:
            self._idl.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _root(self) -> Any:  # a row of the IDL
        for row in self.rows("Open_vSwitch"):
            return row
        raise self._error("read", "the database is empty: it has no row in table Open_vSwitch")

    def _error(self, operation: str, reason: str) -> BackendError:
        return BackendError("ovsdb", operation, self.remote, reason)

    def _connect(self) -> None:
        self._run()
        if self._idl.synced:
            return
        # The IDL waits between attempts and does not say what went wrong: ask the socket itself.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_TIMEOUT)
            try:
                probe.connect(self.remote.removeprefix("unix:"))
            except OSError as error:
                raise self._error("connect", error.strerror or str(error)) from None
        if not self._run_until(lambda: self._idl.synced, ANSWER_TIMEOUT):
            raise self._error("connect", f"no answer in {ANSWER_TIMEOUT:g} s")

    def _barrier(self) -> None:
        # The server answers in order: when this comes back, every change before it is in the replica.
        refusal, _ = self.transact([], configure=False)
        if refusal is not None:
            raise self._error("read", refusal)

    def _run(self) -> None:
        while self._idl.run():
            pass

    def _run_until(self, condition: Callable[[], object], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self._run()
            if condition():
                return True
            if time.monotonic() > deadline:
                return False
            self._block(deadline)

    def _block(self, deadline: float) -> None:
        poller = ovs.poller.Poller()
        self._idl.wait(poller)
        poller.timer_wait(max(0, int((deadline - time.monotonic()) * 1000)) + 1)
        poller.block()

    def _poke(self) -> None:
        # The watcher may be waiting on a file or a time that is no longer the right one.
        if self._watcher is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"\0")

    def _watch(self, judge: Judge) -> None:
        connected: tuple[bool, int] | None = None
        while not self._closed:
            with self.lock:
                self._run()
                touched, self._idl.touched = self._idl.touched, set()
                now = (self._idl.synced, self._idl.session_number if self._idl.synced else 0)
                if now != connected:
                    connected = now
                    touched.add("")
                callbacks = judge(touched) if touched else ()
                poller = ovs.poller.Poller()
                self._idl.wait(poller)
            for callback in callbacks:
                callback()
            poller.fd_wait(self._wake_read, ovs.poller.POLLIN)
            poller.timer_wait(int(WATCH_RETRY * 1000))
            poller.block()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
