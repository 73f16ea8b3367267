"""The manifests of leader and member on a real API server: every field is known, every expression compiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Server, collection

ROOT = Path(__file__).parents[3] / "deploy"

pytestmark = pytest.mark.real_only


@pytest.mark.parametrize("role", ["leader", "member"])
def test_a_real_api_server_takes_every_manifest(server: Server, role: str) -> None:
    """A dry run with strict field validation has no finding, CEL of matchConditions included."""
    for manifest in yaml.safe_load_all((ROOT / f"{role}.yaml").read_text()):
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "CustomResourceDefinition":
            continue  # applied by the fixture
        if kind == "Namespace":
            try:  # the others need it
                server.client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": meta["name"]}})
            except ApiRefusalError as error:
                if error.code != 409:
                    raise
            continue
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        created = server.client.request("POST", collection(server.client, manifest), query, body=manifest)
        assert created["metadata"]["name"] == meta["name"]
