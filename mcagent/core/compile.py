"""Desired state of one Node's dataplane from what the API, the Node and the configuration say.

Pure, total, deterministic. How one follows from the other is `mcagent.core.walk`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.core.engine import Engine
from mcagent.core.walk import Walk
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The desired state of a Node.

    `needs` are the kinds that this Node's state follows from: before all of them are in `Snapshot.synced`,
    something may be missing from `desired`.
    """

    desired: Desired
    needs: frozenset[Kind]

    def missing(self, snapshot: Snapshot) -> frozenset[Kind]:
        """Return the kinds of which something may be missing in the snapshot that this was compiled from."""
        return self.needs - (snapshot.synced - snapshot.selected if self.state.all_services else snapshot.synced)

    @property
    def state(self) -> NodeState:
        """What this Node is."""
        return self.desired.state


class Compiler:
    """Compiles again and again; what did not change since the last call is not computed again.

    The result is that of `compile_desired`, always. What raises leaves nothing behind: the next call starts from
    scratch. One thread.
    """

    def __init__(self) -> None:
        self._engine = Engine()

    def compile(self, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
        """Return what should be on this Node. Unchanged fragments are the last call's very objects."""
        engine, self._engine = self._engine, Engine()
        with engine.one_pass():
            walk = Walk(engine, snapshot, facts, config)
            compiled = Compiled(desired=walk.desired, needs=walk.needs)
        self._engine = engine
        return compiled


def compile_desired(snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
    """Return what should be on this Node, from scratch."""
    return Compiler().compile(snapshot, facts, config)
