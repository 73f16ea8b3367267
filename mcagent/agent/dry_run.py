"""One pass without its last part: what the agent would do now. Writes nothing."""

from __future__ import annotations

import threading
import time

from mcagent.agent.config_keys import Settings
from mcagent.agent.control_loop.reconciler import Reconciler
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.agent.wiring import facts_reader, field_selectors, make_facilities, make_live, make_source
from mcagent.core.compile import compile_desired
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.plan.diff import diff
from mcagent.model.config import DatapathChoice
from mcagent.model.errors import SourceError
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired, Plan


def dry_run(settings: Settings, *, offline: bool, timeout: float) -> tuple[Desired, Plan]:
    """Return the desired state and the steps to it. `offline`: those for a Node that has nothing yet.

    Raises SourceError when the objects are not listed within `timeout` seconds, BackendError when the Node
    cannot be read.
    """
    listing = _Listing(settings)
    if offline:
        facts = _nothing(settings.core.datapath)
        listed = listing.snapshot(facts, timeout)
        desired = compile_desired(listed, facts, settings.core).desired
        return desired, diff({}, desired)
    facilities = make_facilities(settings)
    try:
        read_facts = facts_reader(settings, facilities, listing.api)
        snapshot = listing.snapshot(read_facts(None), timeout)
        return Reconciler(
            backends=facilities.by_name,
            read_facts=read_facts,
            config=settings.core,
            live=make_live(settings, facilities),
        ).preview(snapshot)
    finally:
        facilities.close()


def _nothing(datapath: DatapathChoice) -> Facts:
    """Return what there is to know of a Node that has nothing: the datapath, if it is configured."""
    return Facts() if datapath is DatapathChoice.AUTO else Facts(datapath=DatapathType(datapath.value))


class _Listing:
    """The objects, listed once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Event()
        self._store = SnapshotStore(self._changed.set)
        self._source, self.api = make_source(settings, self._store, self._changed.set)

    def snapshot(self, facts: Facts, timeout: float) -> Snapshot:
        """List everything that this Node's role needs."""
        settings, source, changed = self._settings, self._source, self._changed
        deadline = time.monotonic() + timeout
        source.start(sorted(ALWAYS_NEEDED))
        try:
            while True:
                changed.clear()
                snapshot = self._store.take()
                found = compile_desired(snapshot, facts, settings.core)
                needs, role = found.needs, found.desired.state.role
                source.set_kinds(sorted(needs), field_selectors(role, settings.core.node_name))
                missing = needs - snapshot.synced
                if not missing:
                    return snapshot
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    reasons = {kind: state.error for kind, state in source.state().items()}
                    told = "; ".join(f"{kind}: {reasons.get(kind) or 'no answer'}" for kind in sorted(missing))
                    raise SourceError(f"not listed within {timeout:g} s: {told}")
        finally:
            source.stop()
