"""Lists objects once, in the form that agents read them: for commands and simulated Nodes."""

from __future__ import annotations

from functools import partial

from mcagent.core.compile import compile_desired
from mcagent.core.snapshot import Relist, apply_changes
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.sources.apiserver import IN_NAMESPACE, OPTIONAL
from mcagent.kube.sources.lister import Lister
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing.decode import read_object

_TIMEOUT = 10.0  # seconds for a page of a list


def read_once(client: Client, config: Config, facts: Facts, start: Snapshot) -> Snapshot:
    """Return `start` completed by the kinds that the desired state of the Node `config.node_name` needs.

    Raises SourceError at the first kind that cannot be listed.
    """
    snapshot = start
    while missing := compile_desired(snapshot, facts, config).missing(snapshot):
        snapshot = apply_changes(snapshot, [relist(client, kind, config.namespace) for kind in sorted(missing)])
    return snapshot


def relist(client: Client, kind: Kind, namespace: str) -> Relist:
    """List all objects of a kind, as agents read them; none of a missing optional kind. Raises SourceError."""
    path = object_path(kind, namespace if kind in IN_NAMESPACE else "")
    try:
        objects, _ = Lister(client, kind, path, timeout=_TIMEOUT, keep=partial(read_object, kind)).read()
    except ApiRefusalError as error:
        if error.code not in OPTIONAL.get(kind, ()):
            raise
        objects = []
    return Relist(kind=kind, items=objects)
