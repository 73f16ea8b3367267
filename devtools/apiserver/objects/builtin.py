"""Built-in kinds: the defaults that clients rely on, and the mistakes that the real server would refuse. Pure.

Only what a control plane for Services and its tests meet; everything else of a built-in object is taken as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from devtools.apiserver.errors import Cause, Json, bad_request
from devtools.apiserver.objects.resources import ACCOUNT_NAME, ACCOUNT_TOKEN, ADMISSION, ResourceType
from devtools.apiserver.objects.validation import label

MAX_DATA = 1024 * 1024  # bytes of a ConfigMap's or Secret's data
MAX_ENDPOINTS = 1000  # of one EndpointSlice
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


def defaults(rt: ResourceType, obj: Json) -> Json:
    """Return the object with what clients rely on the server to fill in. Raises ApiError 400."""
    if rt.custom:
        return obj
    filler = _DEFAULTS.get((rt.group, rt.kind))
    return filler(obj) if filler else obj


def causes(rt: ResourceType, obj: Json) -> Iterator[Cause]:
    """Yield what is wrong with an object."""
    checker = None if rt.custom else _CHECKS.get((rt.group, rt.kind))
    if checker:
        yield from checker(obj)


# --- defaults -------------------------------------------------------------------------------------------------


def _service(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    ports = spec.get("ports")
    if isinstance(ports, list):
        spec["ports"] = [_service_port(port) for port in ports]
    if address := spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [address])
    return {"status": {"loadBalancer": {}}, **obj, "spec": spec}


def _service_port(port: Any) -> Any:
    if not isinstance(port, dict):
        return port
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}


def _namespace(obj: Json) -> Json:
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    phase = "Terminating" if meta.get("deletionTimestamp") else "Active"
    return {
        **obj,
        "metadata": {**meta, "labels": labels},
        "status": {**(obj.get("status") or {}), "phase": phase},
    }


def _pod(obj: Json) -> Json:
    return obj if "status" in obj else {**obj, "status": {"phase": "Pending"}}


def _secret(obj: Json) -> Json:
    made = {"type": "Opaque", **obj}
    texts = made.pop("stringData", None)
    if isinstance(texts, dict):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        made["data"] = {**(made.get("data") or {}), **encoded}
    for value in (made.get("data") or {}).values():
        try:
            base64.b64decode(value or "", validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise bad_request(
                'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
            ) from None
    return made


def _slice(obj: Json) -> Json:
    made = dict(obj)
    if isinstance(ports := obj.get("ports"), list):
        made["ports"] = [{"name": "", "protocol": "TCP", **port} for port in ports if isinstance(port, dict)]
    if isinstance(endpoints := obj.get("endpoints"), list):
        made["endpoints"] = [{"conditions": {}, **item} for item in endpoints if isinstance(item, dict)]
    return made


def _endpoints(obj: Json) -> Json:
    made = dict(obj)
    if isinstance(subsets := obj.get("subsets"), list):
        made["subsets"] = [
            {**part, "ports": [{"protocol": "TCP", **port} for port in part["ports"]]}
            if part.get("ports")
            else part
            for part in subsets
            if isinstance(part, dict)
        ]
    return made


_DEFAULTS = {
    ("", "Service"): _service,
    ("", "Namespace"): _namespace,
    ("", "Pod"): _pod,
    ("", "Secret"): _secret,
    ("", "Endpoints"): _endpoints,
    ("discovery.k8s.io", "EndpointSlice"): _slice,
}

# --- checks ---------------------------------------------------------------------------------------------------


def _check_service(obj: Json) -> Iterator[Cause]:
    spec = obj["spec"]
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield Cause("spec.ports", "Required value")
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        yield Cause("spec.externalName", "Required value")
    seen: list[tuple[Any, Any]] = []
    names: list[Any] = []
    for at, port in enumerate(ports):
        path = f"spec.ports[{at}]"
        name, number, protocol = port.get("name"), port.get("port"), port.get("protocol")
        if not name and len(ports) > 1:
            yield Cause(f"{path}.name", "Required value")
        elif name and (wrong := label(name)):
            yield Cause(f"{path}.name", wrong)
        elif name and name in names:
            yield Cause(f"{path}.name", f"Duplicate value: {json.dumps(name)}")
        if not isinstance(number, int) or not 0 < number < 65536:
            yield Cause(f"{path}.port", f"Invalid value: {number}: must be between 1 and 65535, inclusive")
        if protocol not in ("TCP", "UDP", "SCTP"):
            listed = '"SCTP", "TCP", "UDP"'
            yield Cause(
                f"{path}.protocol", f"Unsupported value: {json.dumps(protocol)}: supported values: {listed}"
            )
        if (number, protocol) in seen:
            yield Cause(path, f"Duplicate value: {json.dumps({'port': number, 'protocol': protocol})}")
        seen.append((number, protocol))
        names.append(name)


def _check_data(obj: Json) -> Iterator[Cause]:
    data = {**(obj.get("data") or {}), **(obj.get("binaryData") or {})}
    text = obj.get("data") if obj["kind"] == "ConfigMap" else None
    size = sum(len(value.encode()) for value in (text or {}).values() if isinstance(value, str))
    size += sum(len(value) * 3 // 4 for key, value in data.items() if key not in (text or {}))
    if size > MAX_DATA:
        yield Cause("[]" if text else "data", f"Too long: may not be more than {MAX_DATA} bytes")
    for key in data:
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key):
            yield Cause(f"data[{key}]", f"Invalid value: {json.dumps(key)}: a valid config key must consist of …")


def _check_secret(obj: Json) -> Iterator[Cause]:
    yield from _check_data(obj)
    annotations = obj["metadata"].get("annotations") or {}
    if obj["type"] == ACCOUNT_TOKEN and not annotations.get(ACCOUNT_NAME):
        yield Cause(f"metadata.annotations[{ACCOUNT_NAME}]", "Required value")


def _check_slice(obj: Json) -> Iterator[Cause]:
    kind = obj.get("addressType")
    if not kind:
        yield Cause("addressType", "Required value")
    elif kind not in ("IPv4", "IPv6", "FQDN"):
        yield Cause(
            "addressType", f'Unsupported value: {json.dumps(kind)}: supported values: "FQDN", "IPv4", "IPv6"'
        )
    endpoints = obj.get("endpoints") or []
    if len(endpoints) > MAX_ENDPOINTS:
        yield Cause("endpoints", f"Too many: {len(endpoints)}: must have at most {MAX_ENDPOINTS} items")
        return
    for at, endpoint in enumerate(endpoints):
        addresses = endpoint.get("addresses") or []
        if not addresses:
            yield Cause(f"endpoints[{at}].addresses", "Required value: must contain at least 1 address")
        for number, address in enumerate(addresses):
            if kind != "FQDN" and not _is_address(address, 6 if kind == "IPv6" else 4):
                why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
                yield Cause(f"endpoints[{at}].addresses[{number}]", f"Invalid value: {json.dumps(address)}: {why}")


def _is_address(text: Any, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False


def _check_lease(obj: Json) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    for field in ("leaseDurationSeconds", "leaseTransitions"):
        value, least = spec.get(field), 1 if field == "leaseDurationSeconds" else 0
        if value is not None and value < least:
            words = "must be greater than 0" if least else "must be greater than or equal to 0"
            yield Cause(f"spec.{field}", f"Invalid value: {value}: {words}")
    for field in ("acquireTime", "renewTime"):
        if spec.get(field) is not None and not _MICRO_TIME.fullmatch(str(spec[field])):
            yield Cause(
                f"spec.{field}", f"Invalid value: {json.dumps(spec[field])}: not RFC 3339 with microseconds"
            )


def _check_event(obj: Json) -> Iterator[Cause]:
    about = (obj.get("involvedObject") or {}).get("namespace", "")
    if about != obj["metadata"].get("namespace") and (about or obj["metadata"].get("namespace") != "default"):
        yield Cause(
            "involvedObject.namespace", f"Invalid value: {json.dumps(about)}: does not match event.namespace"
        )


def _check_webhooks(obj: Json) -> Iterator[Cause]:
    for at, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{at}]"
        if hook.get("matchConditions"):
            yield Cause(f"{path}.matchConditions", "Forbidden: this embedded API server does not read CEL")
        if "v1" not in (hook.get("admissionReviewVersions") or ()):
            yield Cause(f"{path}.admissionReviewVersions", "Required value: must include v1")
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            yield Cause(f"{path}.sideEffects", 'Unsupported value: supported values: "None", "NoneOnDryRun"')
        if len(str(hook.get("name", "")).split(".")) < 3:
            why = "should be a domain with at least three segments separated by dots"
            yield Cause(f"{path}.name", f"Invalid value: {json.dumps(hook.get('name'))}: {why}")


_CHECKS = {
    (ADMISSION, "ValidatingWebhookConfiguration"): _check_webhooks,
    ("", "Service"): _check_service,
    ("", "ConfigMap"): _check_data,
    ("", "Secret"): _check_secret,
    ("", "Event"): _check_event,
    ("discovery.k8s.io", "EndpointSlice"): _check_slice,
    ("coordination.k8s.io", "Lease"): _check_lease,
}
