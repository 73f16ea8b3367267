"""The configuration that Antrea's manifests bring can be used as it is."""

from __future__ import annotations

import pytest

from mcagent.controller.admin.migration import Level, Objects, check
from mcagent.controller.config import ControllerRole
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.parsing.decode import read_as
from tests.antrea.clusters import NAMESPACE
from tests.antrea.programs import VERSIONS, manifests


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ControllerRole)
def test_the_configuration_of_the_manifests_is_taken(version: str, role: ControllerRole) -> None:
    """Host bits, feature gates and empty values are no errors; what is ignored is told."""
    documents = manifests(version, role)
    maps = [read_as(ConfigMap, item) for item in documents if item["kind"] == "ConfigMap"]
    assert maps
    said = check(role, Objects(namespace=NAMESPACE[role], config_maps=maps))
    about = [item for item in said if item.about.startswith("ConfigMap ")]
    assert [item.text for item in about if item.level is Level.MUST] == []
    assert [item.text for item in about if item.level is Level.KEPT] == ["its configuration can be used as it is"]
