"""Settings of a member that its own cluster determines: the Service CIDR and the cluster's UID.

Retries until the API server responds. Knows nothing of the engine and of reconcilers.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.kube.client import Client
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError

log = logging.getLogger(__name__)

# Seconds for which a failed dry run is repeated: an admission webhook of another program may never run again, and
# the kubelet ends a controller that does not serve its health after 60 s.
PATIENCE = 20.0
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Return the namespace of this Pod; kube-system outside of one."""
    try:
        return _POD_NAMESPACE.read_text(encoding="ascii").strip() or "kube-system"
    except OSError:
        return os.environ.get("POD_NAMESPACE", "") or "kube-system"


def complete(
    role: ControllerRole, settings: ControllerSettings, client: Client, stop: threading.Event
) -> ControllerSettings:
    """Return the settings with the discovered Service CIDR, if a member has none. Retry until there is a response.

    If the API server does not have it, or fails for PATIENCE, it is that of the cluster's Gateways. Without these,
    or after `stop`, the settings are returned unchanged.
    """
    if role is not ControllerRole.MEMBER or settings.member.service_cidr:
        return settings
    from mcagent.controller.member.networks.discovery import (
        UnknownCidrError,
        discover_service_cidr,
        last_service_cidr,
    )

    home, deadline = settings.pod_namespace or own_namespace(), time.monotonic() + PATIENCE

    def discover() -> str:
        try:
            return discover_service_cidr(client, home)
        except UnknownCidrError as err:
            if err.passing and time.monotonic() < deadline:
                raise
            log.warning("%s", err)
            # Without it, other clusters would no longer reach what is exported.
            return last_service_cidr(client, settings.read_namespace(home))

    cidr = _retried(discover, "the Service CIDR", stop)
    if not cidr:
        return settings
    log.info("Service CIDR of this cluster: %s", cidr)
    return replace(settings, member=replace(settings.member, service_cidr=cidr))


def with_cluster_uid(
    role: ControllerRole, settings: ControllerSettings, client: Client, stop: threading.Event
) -> ControllerSettings:
    """Return a member's settings with the UID of its cluster. Retry until there is a response."""
    if role is not ControllerRole.MEMBER:
        return settings
    from mcagent.controller.member.networks.discovery import discover_cluster_uid

    uid = _retried(lambda: discover_cluster_uid(client), "the UID of Namespace kube-system", stop)
    if not uid and not stop.is_set():
        log.warning(
            "Namespace kube-system cannot be read: another cluster with the same cluster ID is not noticed"
        )
    return replace(settings, member=replace(settings.member, cluster_uid=uid))


def _retried(discover: Callable[[], str], subject: str, stop: threading.Event) -> str:
    """Return what `discover` returns once the API server responds; "" after `stop`."""
    backoff, failures, logged = Backoff(first=0.5, most=10.0), 0, ""
    while not stop.is_set():
        try:
            return discover()
        except SourceError as err:
            if str(err) != logged:
                logged = str(err)
                log.warning("%s is not known yet: %s", subject, err)
            failures += 1
            stop.wait(backoff.delay(failures, random.random()))  # noqa: S311 (spreads load)
    return ""
