"""The source that reads an API server: one informer per kind, started and stopped as roles change."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from mcagent.kube.client import Client
from mcagent.kube.source import Sink
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem

# The kinds that an API server need not serve, with the answers that mean so. Without ServiceImports (no right to
# them: an agent that is newer than its ClusterRole) kube-proxy alone chooses, and all else goes on.
OPTIONAL = {
    Kind.ANTREA_NETWORK_POLICY: frozenset({404}),
    Kind.CLUSTER_NETWORK_POLICY: frozenset({404}),
    Kind.TIER: frozenset({404}),
    Kind.SERVICE_IMPORT: frozenset({403, 404}),
}
# The kinds that are read in one namespace when one is configured; the others are read in all.
IN_NAMESPACE = frozenset({Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT})


class ApiServerSource:
    """Reads kinds from one API server into a sink.

    `namespace` is that of Gateway and ClusterInfoImport objects; "" means all. The client is not closed.
    """

    def __init__(self, client: Client, sink: Sink, *, namespace: str = "", timing: Timing | None = None) -> None:
        self._client, self._sink, self._namespace, self._timing = client, sink, namespace, timing
        self._lock = threading.Lock()
        self._informers: dict[Kind, tuple[tuple[str, str], Informer]] = {}
        self._stopped = False

    def start(self, kinds: Sequence[Kind]) -> None:
        """Begin to read these kinds. Returns at once."""
        self.set_kinds(kinds)

    def set_kinds(
        self,
        kinds: Sequence[Kind],
        field_selectors: Mapping[Kind, str] | None = None,
        label_selectors: Mapping[Kind, str] | None = None,
    ) -> None:
        """Read exactly these kinds from now on; a kind whose selector changes is listed anew."""
        fields, labels = field_selectors or {}, label_selectors or {}
        selectors_by_kind = {kind: (fields.get(kind, ""), labels.get(kind, "")) for kind in kinds}
        with self._lock:
            if self._stopped:
                return
            leaving = {
                kind: entry for kind, entry in self._informers.items() if selectors_by_kind.get(kind) != entry[0]
            }
            for kind, ((_, label), informer) in leaving.items():
                informer.signal_stop()  # nothing comes from it any more; its thread ends by itself
                del self._informers[kind]
                if kind not in selectors_by_kind or (label and not selectors_by_kind[kind][1]):
                    self._sink.forget(kind)
            for kind, selectors in selectors_by_kind.items():
                if kind in self._informers:
                    continue
                informer = Informer(
                    kind,
                    self._client,
                    self._sink,
                    namespace=self._namespace if kind in IN_NAMESPACE else "",
                    field_selector=selectors[0],
                    label_selector=selectors[1],
                    dispensable=OPTIONAL.get(kind, frozenset()),
                    timing=self._timing,
                )
                self._informers[kind] = (selectors, informer)
                informer.start()

    def stop(self) -> None:
        """Stop all informers within about a second; nothing is delivered afterwards."""
        with self._lock:
            self._stopped = True
            informers = [informer for _, informer in self._informers.values()]
        for informer in informers:
            informer.signal_stop()
        for informer in informers:
            informer.stop(timeout=0.2)

    def state(self) -> Mapping[Kind, InformerState]:
        """Return how reading goes, by kind."""
        with self._lock:
            return {kind: informer.state() for kind, (_, informer) in self._informers.items()}

    def problems(self) -> tuple[Problem, ...]:
        """Return nothing: the readers of objects report bad ones."""
        return ()
