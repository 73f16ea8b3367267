"""Patches of objects: what is given is written, also if it is empty, and nothing else."""

from __future__ import annotations

import pytest

from mcagent.model.api.base import ApiPart, Condition, Metadata, as_json
from mcagent.model.api.kubernetes import (
    ApiService,
    ApiServicePort,
    ApiServiceSpec,
    ClientIPConfig,
    Endpoints,
    EndpointSubset,
    SessionAffinityConfig,
    Subsets,
)
from mcagent.model.api.multicluster import ClusterInfo, ResourceExportSpec, WireGuard
from mcagent.model.api.patches import ABSENT, UNSET, annotated, metadata_patch, patch, whole
from mcagent.model.parsing.decode import TYPES


def test_what_is_given_is_written_as_it_is() -> None:
    """Empty texts, lists, mappings and parts are values; ABSENT is null; the rest is left out."""
    spec = patch(
        ApiServiceSpec,
        type="",
        ports=(),
        selector={},
        cluster_ip=ABSENT,
        session_affinity=UNSET,
        session_affinity_config=patch(SessionAffinityConfig),
    )
    written: dict[str, object] = {
        "type": "",
        "ports": (),
        "selector": {},
        "clusterIP": None,
        "sessionAffinityConfig": {},
    }
    assert as_json(patch(ApiService, spec=spec)) == {"spec": written}
    assert as_json(patch(ResourceExportSpec, endpoints=patch(Subsets, subsets=()))) == {
        "endpoints": {"subsets": ()}
    }
    assert as_json(patch(Condition, message="")) == {"message": ""}


@pytest.mark.parametrize("part", [*TYPES.values(), Metadata, ApiServicePort], ids=lambda part: part.__name__)
def test_a_patch_without_fields_writes_nothing(part: type[ApiPart]) -> None:
    """Of any kind: no default value gets into a patch."""
    assert as_json(patch(part)) == {}
    assert isinstance(patch(part), part)


def test_items_of_lists_are_whole() -> None:
    """They may be plain structs, without their default values, or patches."""
    subset = EndpointSubset(ports=())
    assert as_json(patch(Endpoints, subsets=(subset, patch(EndpointSubset, ports=())))) == {
        "subsets": ({}, {"ports": ()})
    }


def test_a_plain_struct_is_no_field_of_a_patch() -> None:
    """It does not say which of its empty fields must be absent."""
    with pytest.raises(TypeError, match=r"ApiService\.spec is no patch"):
        patch(ApiService, spec=ApiServiceSpec(type="ClusterIP"))
    with pytest.raises(TypeError, match=r"SessionAffinityConfig\.client_ip is no patch"):
        patch(SessionAffinityConfig, client_ip=ClientIPConfig())


def test_a_whole_part_says_what_must_be_absent() -> None:
    """All its fields, also those of parts in it; the part itself stays as it is."""
    info = ClusterInfo(cluster_id="east", wireguard=WireGuard(public_key="k"))
    keys = {"publicKey": "k", "nextPublicKey": None, "port": None, "devices": None}
    missing = dict.fromkeys(("serviceCIDR", "podCIDRs", "gatewayInfos"))
    assert as_json(whole(info)) == {"clusterID": "east", **missing, "wireGuard": keys}
    assert as_json(info) == {"clusterID": "east", "wireGuard": {"publicKey": "k"}}


def test_patches_of_metadata() -> None:
    """Labels and annotations of others stay; finalizers are a list, which is written whole."""
    assert as_json(metadata_patch()) == {}
    assert as_json(metadata_patch(labels={"a": None}, finalizers=[])) == {
        "labels": {"a": None},
        "finalizers": None,
    }
    assert as_json(metadata_patch(finalizers=["a/b"])) == {"finalizers": ("a/b",)}
    assert as_json(annotated(ApiService, {"a": "", "b": None})) == {
        "metadata": {"annotations": {"a": "", "b": None}}
    }


def test_types_of_fields() -> None:
    """mypy finds misspelt fields and values of wrong types: it also checks that each `type: ignore` is needed."""
    with pytest.raises(TypeError, match="specs"):
        patch(ApiService, specs=patch(ApiServiceSpec))  # type: ignore[call-arg]
    patch(ApiService, spec=patch(Metadata))  # type: ignore[arg-type]
    families: tuple[int, ...] = ()
    patch(ApiServiceSpec, cluster_ip=7, ip_families=families or ABSENT)  # type: ignore[arg-type]
    patch(ApiServiceSpec, cluster_ips=["10.0.0.1"])  # type: ignore[arg-type]
