"""One pass without its last part: what the agent would do now. Writes nothing."""

from __future__ import annotations

import threading
import time
from contextlib import closing

from mcagent.agent.config import Settings
from mcagent.agent.control_loop.reconciler import Reconciler
from mcagent.agent.objects import Objects
from mcagent.agent.wiring import facts_reader, make_facilities, make_live
from mcagent.core.compile import compile_desired
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
    changed = threading.Event()
    objects = Objects(settings, changed.set)
    if offline:
        choice = settings.core.datapath
        facts = Facts() if choice is DatapathChoice.AUTO else Facts(datapath=DatapathType(choice.value))
        listed = _listed(settings, objects, changed, facts, timeout)
        desired = compile_desired(listed, facts, settings.core).desired
        return desired, diff({}, desired)
    with closing(make_facilities(settings)) as facilities:
        read_facts = facts_reader(settings, facilities, objects.api_servers)
        snapshot = _listed(settings, objects, changed, read_facts(None), timeout)
        return Reconciler(
            backends=facilities.by_name,
            read_facts=read_facts,
            config=settings.core,
            live=make_live(settings, facilities),
        ).preview(snapshot)


def _listed(
    settings: Settings, objects: Objects, changed: threading.Event, facts: Facts, timeout: float
) -> Snapshot:
    """Return everything that this Node's role needs, listed once."""
    deadline = time.monotonic() + timeout
    objects.start(write=False)
    try:
        while True:
            changed.clear()
            snapshot = objects.take()
            found = compile_desired(snapshot, facts, settings.core)
            objects.want(found.needs, all_pods=found.desired.state.all_pods)
            missing = found.needs - snapshot.synced
            if not missing:
                return snapshot
            if not changed.wait(max(0.0, deadline - time.monotonic())):
                reasons = {state.kind: state.error for state in objects.informers()}
                named = "; ".join(f"{kind}: {reasons.get(kind) or 'no answer'}" for kind in sorted(missing))
                raise SourceError(f"not listed within {timeout:g} s: {named}")
    finally:
        objects.stop()
