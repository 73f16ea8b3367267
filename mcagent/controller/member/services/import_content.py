"""What a ResourceImport says, checked: a leader may pass on what any member wrote, so nothing in it is trusted.

Pure: raw objects to frozen values with known fields only. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from mcagent.controller.contract.services import Ports, ServiceSpec, Subsets, read_service_spec
from mcagent.controller.contract.services import read_subsets as subsets_of
from mcagent.kube.source import RawObject
from mcagent.model.field import Field, printable
from mcagent.model.objects import Kind


def field_of(raw: RawObject) -> Field:
    """Return a ResourceImport as a Field, named for messages."""
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return Field(f"{Kind.RESOURCE_IMPORT} {printable(str(name))}", raw)


def read_service(raw: RawObject) -> ServiceSpec:
    """Return the Service of a ResourceImport of kind ServiceImport. Raises InputError."""
    return read_service_spec(field_of(raw).get("spec").get("serviceImport").get("spec"))


def read_subsets(raw: RawObject) -> Subsets:
    """Return the endpoints of a ResourceImport of kind Endpoints by the ports they serve. Raises InputError.

    Addresses stay as they were written, in their order, each once.
    """
    found: dict[Ports, dict[str, None]] = {}
    for _, ports, addresses in subsets_of(field_of(raw).get("spec").get("endpoints")):
        kept = found.setdefault(ports, {}) if ports else {}
        for item in addresses:
            kept[item.get("ip").text()] = None
    return {ports: tuple(addresses) for ports, addresses in found.items()}
