"""Objects of an API server, read and written by kind. Knows nothing of who runs the server."""

from __future__ import annotations

from typing import Any

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind

Json = dict[str, Any]


class Objects:
    """The objects that a client reads and writes. What the API server refuses raises ApiRefusalError."""

    client: Client

    def put(self, kind: Kind, name: str, namespace: str = "", **fields: Any) -> Any:
        """Create an object and return it."""
        meta = {"name": name, **fields.pop("metadata", {})}
        body = {"apiVersion": KINDS[kind].api_version, "kind": str(kind), "metadata": meta, **fields}
        return self.client.request("POST", object_path(kind, namespace), body=body)

    def patch(self, kind: Kind, name: str, namespace: str, body: Json, *, part: str = "") -> Any:
        """Merge something into an object (`part`: "/status") and return it."""
        path = object_path(kind, namespace, name) + part
        return self.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def get(self, kind: Kind, name: str, namespace: str = "") -> Any:
        """Return an object, None if there is none."""
        try:
            return self.client.request("GET", object_path(kind, namespace, name))
        except ApiRefusalError as err:
            if err.code == 404:
                return None
            raise

    def items(self, kind: Kind, namespace: str = "") -> list[Json]:
        """Return all objects of a kind in a namespace."""
        items: list[Json] = self.client.request("GET", object_path(kind, namespace))["items"]
        return items

    def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object if it is there."""
        if self.get(kind, name, namespace) is not None:
            self.client.request("DELETE", object_path(kind, namespace, name))
