"""The commands `mcagent dns`: they configure a cluster's CoreDNS for names of the Multi-Cluster Services API.

They change one object, the ConfigMap with the Corefile; `corefile` has the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.controller.admin import corefile
from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.controller.admin.fields import items_at, mapping_at, text_at
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError

KEY = "Corefile"
# of the ConfigMap: `apply` has added the zone. It stays where an owner of the ConfigMap writes the Corefile back.
LABEL, _APPLIED = "mcagent.io/dns", "applied"
# Labels and annotations by which owners mark what they write back; "/" at the end: all with this prefix.
_OWNERS = {
    "objectset.rio.cattle.io/": "k3s or RKE2",
    "addonmanager.kubernetes.io/mode": "an add-on manager, as of AKS",
    "eks.amazonaws.com/component": "EKS",
    "addon.kops.k8s.io/": "kOps",
    "meta.helm.sh/release-name": "a Helm release",
}
_OLDEST = ".".join(map(str, corefile.OLDEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreDns:
    """The objects of a cluster's CoreDNS."""

    namespace: str = "kube-system"
    config_map: str = "coredns"
    deployment: str = "coredns"
    version: str = ""  # if its image has no version

    @property
    def shown(self) -> str:
        """The name of the ConfigMap, for messages."""
        return f"ConfigMap {self.namespace}/{self.config_map}"


def wanted(cluster: Cluster, coredns: CoreDns) -> str:
    """Return the Corefile that `apply` writes. Raises AdminError, InputError, SourceError."""
    return corefile.configured(_corefile(_config_map(cluster, coredns), coredns), coredns.shown)


def apply(cluster: Cluster, coredns: CoreDns) -> bool:
    """Add the zone to the Corefile; return whether it changed. Raises AdminError, InputError, SourceError."""
    config_map = _config_map(cluster, coredns)
    old = _corefile(config_map, coredns)
    new = corefile.configured(old, coredns.shown)
    for owner in owners(config_map):
        cluster.report(
            f"warning: {coredns.shown} belongs to {owner}, which may write its own Corefile back: names of the "
            "ClusterSet are not answered then, and mcagent doctor --all reports it. Configure them where the "
            "owner reads its Corefile (docs/multicluster.md)"
        )
    if new == old:
        if not _is_labelled(config_map):  # applied by mcagent 0.1.0, or by hand
            _write(cluster, coredns, config_map, new, label=_APPLIED)
        cluster.report(f"{coredns.shown}: {corefile.ZONE} is there already")
        return False
    _check_version(cluster, coredns)  # an older one would not start with this Corefile
    _write(cluster, coredns, config_map, new, label=_APPLIED)
    cluster.report(f"{coredns.shown}: {corefile.ZONE} added; {_when(new, coredns)}")
    return True


def remove(cluster: Cluster, coredns: CoreDns) -> bool:
    """Remove the additions of `apply`; return whether there were any. Raises AdminError, SourceError."""
    config_map = cluster.find_any(_path(coredns))
    old = "" if config_map is None else text_at(config_map, "data", KEY)
    new = corefile.restored(old)
    if config_map is None or (new == old and not _is_labelled(config_map)):
        cluster.report(f"{coredns.shown}: mcagent dns has added nothing")
        return False
    _write(cluster, coredns, config_map, new, label=None)
    cluster.report(f"{coredns.shown}: {corefile.ZONE} removed; {_when(new, coredns)}")
    return True


def is_applied(cluster: Cluster, coredns: CoreDns) -> bool:
    """Tell whether the Corefile has the additions of `apply`. Raises SourceError."""
    config_map = cluster.find_any(_path(coredns)) or {}
    old = text_at(config_map, "data", KEY)
    return corefile.restored(old) != old or _is_labelled(config_map)


def owners(config_map: RawObject) -> list[str]:
    """Return who may write a ConfigMap back, by its labels and annotations."""
    marks = [mark for kind in ("labels", "annotations") for mark in mapping_at(config_map, "metadata", kind)]
    return [
        owner
        for mark, owner in _OWNERS.items()
        if any(key == mark or (mark.endswith("/") and key.startswith(mark)) for key in marks)
    ]


def lost(config_map: RawObject, shown: str) -> str:
    """Return why names that `apply` has configured are not answered; "" if they are. `shown` names the object."""
    text = text_at(config_map, "data", KEY)
    try:
        complete = corefile.configured(text, shown) == text
    except InputError as error:
        return str(error)
    return "" if complete else f"{shown}: its Corefile lacks {corefile.ZONE}, which mcagent dns apply added"


def _is_labelled(config_map: RawObject) -> bool:
    return LABEL in mapping_at(config_map, "metadata", "labels")


def _config_map(cluster: Cluster, coredns: CoreDns) -> RawObject:
    config_map = cluster.find_any(_path(coredns))
    if config_map is None:
        raise AdminError(
            f"{coredns.shown} is not there: name that of this cluster's CoreDNS (--coredns-namespace, --configmap)"
        )
    return config_map


def _corefile(config_map: RawObject, coredns: CoreDns) -> str:
    text = text_at(config_map, "data", KEY)
    if not text:
        raise AdminError(f"{coredns.shown}: data.{KEY}: is not there; it must be the configuration of CoreDNS")
    return text


def _check_version(cluster: Cluster, coredns: CoreDns) -> None:
    """Raise AdminError unless CoreDNS has the plugin's line `multicluster`."""
    where = f"/apis/apps/v1/namespaces/{coredns.namespace}/deployments/{coredns.deployment}"
    deployment = {} if coredns.version else cluster.find_any(where) or {}
    containers = items_at(deployment, "spec", "template", "spec", "containers")
    image = coredns.version or (text_at(containers[0], "image") if containers else "")
    version = corefile.version_of(image)
    if version is None:
        subject = f'image "{image}" of' if image else "there is no"
        raise AdminError(
            f"{subject} Deployment {coredns.namespace}/{coredns.deployment}: CoreDNS must be {_OLDEST} or newer, "
            "and the running version is unknown; name it with --coredns-version"
        )
    if version < corefile.OLDEST:
        raise AdminError(
            f"CoreDNS is {'.'.join(map(str, version))} and would not start again with this Corefile: "
            f"it must be {_OLDEST} or newer"
        )


def _write(cluster: Cluster, coredns: CoreDns, config_map: RawObject, text: str, *, label: str | None) -> None:
    """Write Corefile and label (None: none), unless another client has changed the ConfigMap since it was read."""
    metadata = {"resourceVersion": text_at(config_map, "metadata", "resourceVersion"), "labels": {LABEL: label}}
    cluster.merge(_path(coredns), {"metadata": metadata, "data": {KEY: text}})


def _path(coredns: CoreDns) -> str:
    return f"/api/v1/namespaces/{coredns.namespace}/configmaps/{coredns.config_map}"


def _when(text: str, coredns: CoreDns) -> str:
    if corefile.reloads(text):
        return "CoreDNS loads it within two minutes"
    restart = f"kubectl rollout restart -n {coredns.namespace} deployment/{coredns.deployment}"
    return f"CoreDNS loads it after: {restart}"
