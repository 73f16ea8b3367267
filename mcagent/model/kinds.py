"""Which API resource each Kind is: group, version, plural, scope. The one table that everybody uses.

Knows the names on the wire and nothing of fields, clients or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KindInfo:
    """One row: how the API server names a kind. `group` is "" for the core group."""

    kind: Kind
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return what stands in `apiVersion`: "v1", "discovery.k8s.io/v1", ..."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base_path(self) -> str:
        """Return the URL path of the group and version: "/api/v1", "/apis/discovery.k8s.io/v1", ..."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


_ANTREA = "multicluster.crd.antrea.io"
_MCS = "multicluster.x-k8s.io"

KINDS: Mapping[Kind, KindInfo] = MappingProxyType(
    {
        info.kind: info
        for info in (
            KindInfo(kind=Kind.GATEWAY, group=_ANTREA, version="v1alpha1", plural="gateways"),
            KindInfo(
                kind=Kind.CLUSTER_INFO_IMPORT, group=_ANTREA, version="v1alpha1", plural="clusterinfoimports"
            ),
            KindInfo(kind=Kind.NODE, group="", version="v1", plural="nodes", namespaced=False),
            KindInfo(kind=Kind.POD, group="", version="v1", plural="pods"),
            KindInfo(kind=Kind.SERVICE, group="", version="v1", plural="services"),
            KindInfo(kind=Kind.ENDPOINT_SLICE, group="discovery.k8s.io", version="v1", plural="endpointslices"),
            KindInfo(kind=Kind.SERVICE_EXPORT, group=_MCS, version="v1alpha1", plural="serviceexports"),
        )
    }
)

_BY_NAME = {(info.api_version, str(info.kind)): info.kind for info in KINDS.values()}


def kind_of(raw: object) -> Kind | None:
    """Return the Kind of an object by its `apiVersion` and `kind`; None when it is none that is read here."""
    if not isinstance(raw, Mapping):
        return None
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    return _BY_NAME.get((api_version, kind))
