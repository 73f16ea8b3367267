"""The bundle of `mcagent doctor --bundle`: what a bug report needs, in a .tgz of mode 0600, without secrets.

Secrets are never read; everything that is read goes through `mcagent.doctor.scrub` all the same. Bounded in
size: each part by itself, and all together; what is cut says so.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcagent.agent.config import KEYS, Settings
from mcagent.api.codec import to_json
from mcagent.api.doctor import DoctorReport
from mcagent.cli.common.agents import ClusterAgents, ask_nodes, read_list
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.cluster_flags import usual_kubeconfig
from mcagent.doctor.dump import dump
from mcagent.doctor.scrub import public_keys, scrub_object, scrub_text, scrub_value
from mcagent.kube.client import Client
from mcagent.kube.sources.lister import Lister
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.observe.version import version

PART, WHOLE = 8 * 1024 * 1024, 64 * 1024 * 1024  # bytes, before compression
LOG_BYTES, LOG_LINES, LOGS = 1024 * 1024, 5000, 64  # of a Pod's log; Pods whose logs are read
_TIMEOUT = 10.0
_OURS = "app.kubernetes.io/name=mcagent"
_KINDS = (
    Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT,
    Kind.SERVICE_EXPORT, Kind.SERVICE_IMPORT, Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.NODE, Kind.LEASE,
    Kind.CUSTOM_RESOURCE_DEFINITION, Kind.VALIDATING_WEBHOOK_CONFIGURATION,
)  # fmt: skip
_NODE_STATUS = ("addresses", "conditions", "nodeInfo")
_Part = tuple[str, Any]  # name in the bundle; a text, or a JSON value


def write_bundle(
    file: Path,
    report: DoctorReport,
    settings: Settings,
    *,
    context: Sequence[str],
    agents: Path | None,
    progress: Callable[[str], None],
) -> int:
    """Write the bundle and return its size in bytes. `agents`: a list of them.

    Raises FileExistsError rather than overwrite; OSError.
    """
    parts: list[_Part] = [("doctor.json", to_json(report)), ("configuration.json", _configuration(settings))]
    if report.clusters:
        for name in context or [""]:
            parts += _of_cluster(settings, name, agents, progress)
    else:
        parts += _of_node(settings, progress)
    data = packed(parts)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o600), "wb") as out:
        out.write(data)
    return len(data)


def packed(parts: Sequence[_Part]) -> bytes:
    """Return the .tgz of these parts, each scrubbed and bounded."""
    public = frozenset(key for _, content in parts if not isinstance(content, str) for key in public_keys(content))
    room, now = WHOLE, int(time.time())
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in (("README.txt", _README), *parts):
            if isinstance(content, str):
                text = scrub_text(content, public)
            else:
                text = json.dumps(scrub_value(content, public), indent=1, default=str) + "\n"
            data = text.encode(errors="replace")
            if len(data) > (most := min(PART, room)):
                data = data[:most] + b"\n[cut]\n"
            room = max(room - len(data), 0)
            info = tarfile.TarInfo(f"mcagent-doctor/{name}")
            info.size, info.mtime, info.mode = len(data), now, 0o600
            archive.addfile(info, io.BytesIO(data))
    return whole.getvalue()


_README = f"""\
Made by mcagent {version()} doctor --bundle. No Secrets, tokens, private keys, kubeconfigs: what looks like one is
[hidden]. There are names and addresses of Nodes, Pods and Services. Review it before you share it.
"""


def _configuration(settings: Settings) -> dict[str, object]:
    values = {key.path: key.value_in(settings) for key in KEYS if key.path != "kubeconfig"}
    return {name: value if isinstance(value, int | float | bool) else str(value) for name, value in values.items()}


def _of_node(settings: Settings, progress: Callable[[str], None]) -> Iterator[_Part]:
    progress("the agent's status")
    try:
        yield "status.json", dict(ask_agent(settings, timeout=_TIMEOUT))
    except McagentError as error:
        yield "status.txt", str(error)
    progress("the dataplane")
    yield from dump(settings.core, settings.ovsdb)
    if settings.source == "kube":
        try:
            client = Client(settings.kubeconfig, user_agent="mcagent-doctor")
        except SourceError as error:
            yield "objects.txt", str(error)
            return
        try:
            yield from _objects(client, "objects", progress)
        finally:
            client.close()


def _of_cluster(
    settings: Settings, context: str, listed: Path | None, progress: Callable[[str], None]
) -> Iterator[_Part]:
    folder = f"clusters/{context or 'current'}"
    client = Client(settings.kubeconfig or usual_kubeconfig(), context, user_agent="mcagent-doctor")
    try:
        yield from _objects(client, f"{folder}/objects", progress)
        progress("logs")
        yield from _logs(client, f"{folder}/logs")
        progress("the agents' status")
        agents = read_list(listed) if listed is not None else ClusterAgents(client=client)
        for answer in ask_nodes(agents, timeout=_TIMEOUT).values():
            yield f"{folder}/status/{answer.node}.json", dict(answer.page) if answer.page else answer.error
    except McagentError as error:
        yield f"{folder}/error.txt", str(error)
    finally:
        client.close()


def _objects(client: Client, folder: str, progress: Callable[[str], None]) -> Iterator[_Part]:
    """Yield our objects, trimmed; of Nodes only what mcagent reads."""
    for kind in _KINDS:
        progress(f"{kind} objects")
        try:
            objects, _ = Lister(client, kind, object_path(kind, ""), timeout=_TIMEOUT).read()
        except SourceError as error:
            yield f"{folder}/{kind}.txt", str(error)
            continue
        public = frozenset(public_keys(objects))
        shown = [_trimmed(kind, obj) for obj in objects if _wanted(kind, obj)]
        yield (
            f"{folder}/{kind}.json",
            [scrubbed for obj in shown if (scrubbed := scrub_object(obj, public)) is not None],
        )
    try:
        query = {"fieldSelector": "reportingComponent=mcagent", "limit": "1000"}
        events = client.request("GET", object_path(Kind.EVENT, ""), query, timeout=_TIMEOUT).get("items") or []
        names = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "involvedObject")
        yield f"{folder}/Event.json", [{name: event.get(name) for name in names} for event in events]
    except (SourceError, AttributeError) as error:
        yield f"{folder}/Event.txt", str(error)


def _wanted(kind: Kind, obj: Mapping[str, Any]) -> bool:
    """Tell whether an object may be ours, of kinds that others have, too."""
    if kind in {Kind.LEASE, Kind.VALIDATING_WEBHOOK_CONFIGURATION}:
        return "mcagent" in str(obj.get("metadata", {}).get("name"))
    if kind is Kind.CUSTOM_RESOURCE_DEFINITION:
        return str(obj.get("spec", {}).get("group")) in {
            KINDS[Kind.GATEWAY].group,
            KINDS[Kind.SERVICE_EXPORT].group,
        }
    return True


def _trimmed(kind: Kind, obj: Mapping[str, Any]) -> Mapping[str, Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if kind is Kind.NODE:
        cidrs = {name: spec[name] for name in ("podCIDR", "podCIDRs", "unschedulable") if name in spec}
        return {**obj, "spec": cidrs, "status": {name: status[name] for name in _NODE_STATUS if name in status}}
    if kind is Kind.CUSTOM_RESOURCE_DEFINITION:
        versions = [{n: v.get(n) for n in ("name", "served", "storage")} for v in spec.get("versions") or ()]
        return {**obj, "spec": {"group": spec.get("group"), "versions": versions}, "status": {}}
    return obj


def _logs(client: Client, folder: str) -> Iterator[_Part]:
    pods = client.request("GET", "/api/v1/pods", {"labelSelector": _OURS, "limit": "500"}, timeout=_TIMEOUT)
    for pod in (pods.get("items") or [])[:LOGS]:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        for previous in ("false", "true"):
            query = {"tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES), "previous": previous}
            try:
                text = client.get(path, query, timeout=_TIMEOUT, most=2 * LOG_BYTES, accept="*/*")
            except SourceError:
                continue  # it has not run before, or does not run
            name = f"{meta['name']}{'-previous' if previous == 'true' else ''}.log"
            yield f"{folder}/{name}", text.decode(errors="replace")
