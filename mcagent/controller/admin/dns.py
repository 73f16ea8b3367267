"""Names of the Multi-Cluster Services API in a cluster's own CoreDNS: switched on, shown, and switched off again.

Owns the one object that is changed, the ConfigMap with the Corefile. What is changed in it is `corefile`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.controller.admin import corefile
from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.controller.admin.fields import items_at, text_at, value_at
from mcagent.kube.source import RawObject

KEY = "Corefile"
_OLDEST = ".".join(map(str, corefile.OLDEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreDns:
    """Where a cluster's CoreDNS is. `version`: which it is, where its image does not say."""

    namespace: str = "kube-system"
    config_map: str = "coredns"
    deployment: str = "coredns"
    version: str = ""

    @property
    def shown(self) -> str:
        """How messages name the ConfigMap."""
        return f"ConfigMap {self.namespace}/{self.config_map}"


def wanted(cluster: Cluster, coredns: CoreDns) -> str:
    """Return the Corefile by which names are answered. Raises AdminError, InputError, SourceError."""
    return corefile.configured(_corefile(_config_map(cluster, coredns), coredns), coredns.shown)


def apply(cluster: Cluster, coredns: CoreDns) -> bool:
    """Have CoreDNS answer names; tell whether that changed anything.

    Raises AdminError, InputError, SourceError.
    """
    config_map = _config_map(cluster, coredns)
    old = _corefile(config_map, coredns)
    new = corefile.configured(old, coredns.shown)
    if new == old:
        cluster.report(f"{coredns.shown}: {corefile.ZONE} is there already")
        return False
    _check_version(cluster, coredns)  # an older one would not start again with such a Corefile
    _write(cluster, coredns, config_map, new)
    cluster.report(f"{coredns.shown}: {corefile.ZONE} added; {_when(new, coredns)}")
    return True


def remove(cluster: Cluster, coredns: CoreDns) -> bool:
    """Take out again what `apply` has put in; tell whether anything was there. Raises AdminError, SourceError."""
    config_map = cluster.find_any(_path(coredns))
    old = "" if config_map is None else text_at(config_map, "data", KEY)
    new = corefile.restored(old)
    if config_map is None or new == old:
        cluster.report(f"{coredns.shown}: mcagent dns has added nothing")
        return False
    _write(cluster, coredns, config_map, new)
    cluster.report(f"{coredns.shown}: {corefile.ZONE} removed; {_when(new, coredns)}")
    return True


def is_applied(cluster: Cluster, coredns: CoreDns) -> bool:
    """Tell whether what `apply` puts in is there. Raises SourceError."""
    old = text_at(cluster.find_any(_path(coredns)) or {}, "data", KEY)
    return corefile.restored(old) != old


def _config_map(cluster: Cluster, coredns: CoreDns) -> RawObject:
    found = cluster.find_any(_path(coredns))
    if found is None:
        raise AdminError(
            f"{coredns.shown} is not there: name that of this cluster's CoreDNS (--coredns-namespace, --configmap)"
        )
    return found


def _corefile(config_map: RawObject, coredns: CoreDns) -> str:
    text = text_at(config_map, "data", KEY)
    if not text:
        raise AdminError(f"{coredns.shown}: data.{KEY}: is not there; it must be the configuration of CoreDNS")
    return text


def _check_version(cluster: Cluster, coredns: CoreDns) -> None:
    """Raises AdminError unless CoreDNS knows such names."""
    where = f"/apis/apps/v1/namespaces/{coredns.namespace}/deployments/{coredns.deployment}"
    deployment = {} if coredns.version else cluster.find_any(where) or {}
    containers = items_at(deployment, "spec", "template", "spec", "containers")
    image = coredns.version or (str(value_at(containers[0], "image") or "") if containers else "")
    version = corefile.version_of(image)
    if version is None:
        told = f'image "{image}" of' if image else "there is no"
        raise AdminError(
            f"{told} Deployment {coredns.namespace}/{coredns.deployment}: CoreDNS must be {_OLDEST} or newer, and "
            "the running version is unknown; name it with --coredns-version"
        )
    if version < corefile.OLDEST:
        raise AdminError(
            f"CoreDNS is {'.'.join(map(str, version))} and would not start again with this Corefile: "
            f"it must be {_OLDEST} or newer"
        )


def _write(cluster: Cluster, coredns: CoreDns, config_map: RawObject, text: str) -> None:
    """Write the Corefile, if nobody has changed the ConfigMap meanwhile."""
    seen = text_at(config_map, "metadata", "resourceVersion")
    cluster.merge(_path(coredns), {"metadata": {"resourceVersion": seen}, "data": {KEY: text}})


def _path(coredns: CoreDns) -> str:
    return f"/api/v1/namespaces/{coredns.namespace}/configmaps/{coredns.config_map}"


def _when(text: str, coredns: CoreDns) -> str:
    if corefile.reloads(text):
        return "CoreDNS loads it within two minutes"
    restart = f"kubectl rollout restart -n {coredns.namespace} deployment/{coredns.deployment}"
    return f"CoreDNS loads it after: {restart}"
