"""The Helm chart, as far as it can be judged without Helm: values, their schema, what templates use of them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from devtools import chart_schema
from mcagent.agent.config import SCHEMA as AGENT
from mcagent.controller.admin.manifests import merged
from mcagent.controller.config import SCHEMA as CONTROLLER
from mcagent.model.keys.key import Key
from tests.properties import costly

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/mcagent"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)  # `jsonschema.validate` would check the schema each time
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}


def values(path: str, value: object) -> dict[str, Any]:
    """Return the chart's values with one of them another."""
    values: dict[str, Any] = json.loads(json.dumps(VALUES))
    subvalues = values
    *above, last = path.split(".")
    for part in above:
        subvalues = subvalues.setdefault(part, {})
    subvalues[last] = value
    return values


def test_the_schema_is_current() -> None:
    """values.schema.json is what devtools.chart_schema makes of the keys that processes have."""
    assert (CHART / "values.schema.json").read_text() == chart_schema.text()
    assert (CHART / "files/durations.json").read_text() == chart_schema.durations_text()


def test_the_chart_has_the_version_of_the_program() -> None:
    """Chart and image are of one version, which `make release` compares with the tag."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == str(chart["appVersion"])
    assert VALUES["image"]["tag"] == ""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["source"] == "vcs"


def test_defaults_are_right() -> None:
    """What values.yaml says is what its schema allows."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    VALIDATOR.validate(VALUES)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agent.config.clusterId", "east"),
        ("agent.config.tunnelType", "gre"),
        ("agent.config.podCIDRs", "10.0.0.0/8"),
        ("agent.config.wireGuard.prot", 1),
        ("agent.config.wireGuard.port", 0),
        ("agent.config.mtu", "large"),
        ("agent.config.clusterID", "East!"),
        ("agent.config.bfd.local.interval", "soon"),
        ("agent.config.gateways", "both"),
        ("agent.config.podCIDRs", ["10.1.0.0/33"]),
        ("agent.config.podCIDRs", ["10.1.0.300/16"]),
        ("agent.config.protectedCIDRs", ["127.0.0.0/8"]),
        ("agent.config.listen", ":70000"),
        ("agent.config.routeProtocol", 8),
        ("agent.config.importedTraffic", "local > > east"),
        ("agent.config.serviceCIDRs", ["everywhere"]),
        ("agent.maxUnavailable", "110%"),
        ("agents.enabled", True),
        ("image.repository", ""),
        ("image.registry", "registry.example.com/"),
        ("image.digest", "latest"),
        ("agent.podLabels", {"app.kubernetes.io/name": "other"}),
        ("member.extraEnv", [{"value": "without a name"}]),
        ("image.pullPolicy", "Sometimes"),
        ("leader.namespace", "Not_A_Label"),
        ("leader.config.metrics.bindAdress", ":1"),
        ("member.namespace", "elsewhere"),
        ("member.replicas", 0),
        ("member.config.endpointIPType", "NodeIP"),
        ("member.networkPolicy.webhookFrom", ["everywhere"]),
        ("leader.networkPolicy.egressTo", ["10.0.0.1"]),
        ("dns.coreDNS.version", "latest"),
        ("dns.coreDNS.namespace", ""),
        ("metricsReader.subjects", "prometheus"),
        ("podMonitor.interval", "often"),
        ("prometheusRule.labels", ["release"]),
        ("grafanaDashboards.enabled", "yes"),
        ("openvswitch.deploy", "sometimes"),
        ("openvswitch.directory", "run/openvswitch"),
    ],
)
def test_nonsense_is_refused(path: str, value: object) -> None:
    """A misspelt key or an impossible value ends at the schema, not in a Pod that does not start."""
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(values(path, value))


@pytest.mark.parametrize("key", [*AGENT.keys, *CONTROLLER.keys], ids=lambda key: key.path)
def test_the_schema_accepts_what_a_process_accepts(key: Key) -> None:
    """A default, as the configuration shows it, is a valid value of the chart."""
    if key.default is not None:
        jsonschema.validate(yaml.safe_load(key.value.show(key.default)), dict(key.value.schema))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("agent.config.trafficEncryptionMode", "WIREGUARD"),
        ("agent.config.bfd.local.interval", "1m30s"),
        ("agent.config.bfd.local.interval", 0.5),
        ("agent.config.mtu", 0),
        ("agent.config.podCIDRs", ["10.1.0.0/16", ""]),
        ("agent.config.podCIDRs", ["10.1.0.5/16"]),
        ("agent.config.podCIDRs", ["169.1.0.0/16", "169.254.0.0/15", "223.255.255.0/32", "168.0.0.0/8"]),
        ("agent.config.importedTraffic", "local > east=3, west=1"),
        ("leader.config.staleAfter", "36h"),
    ],
)
def test_every_form_of_a_value_is_accepted(path: str, value: object) -> None:
    """The schema refuses no value that agent or controllers accept."""
    VALIDATOR.validate(values(path, value))


@pytest.mark.parametrize("role", ["agent", "member", "leader"])
def test_every_key_of_the_configuration_is_allowed(role: str) -> None:
    """Whatever docs/configuration.md lists can be set through the chart."""
    properties = SCHEMA["properties"][role]["properties"]["config"]["properties"]
    for key in (AGENT if role == "agent" else CONTROLLER).keys:
        schema = {"properties": properties}
        for part in key.path.split("."):
            schema = schema["properties"][part]


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all values but those within a configuration."""
    for name, below in tree.items():
        if isinstance(below, dict) and below and name not in {"config", "resources"}:  # these are handed on whole
            yield from leaves(below, (*path, name))
        else:
            yield (*path, name)


def test_every_value_is_used() -> None:
    """A value that no template reads would be a promise that nobody keeps."""
    text = "\n".join(TEMPLATES.values())
    for *above, last in leaves(VALUES):
        tail = re.escape(".".join([*above, last][1:] or [last]))
        assert re.search(rf"\.{tail}\b|\.{re.escape(last)}\b", text), (*above, last)


def test_namespaces_and_image_are_values() -> None:
    """No template names the default namespaces or image itself, but for accounts of Kubernetes and Antrea."""
    for name, text in TEMPLATES.items():
        accounts = "generic-garbage-collector|namespace-controller|antrea-mc-controller|antrea-agent"
        remaining_text = re.sub(rf"kube-system[:/]({accounts})", "", text)
        assert "kube-system" not in remaining_text, name
        assert "antrea-multicluster" not in remaining_text, name
        assert "mcagent:0" not in remaining_text, name


def test_the_application_of_argo_cd_installs_this_chart() -> None:
    """Its values pass the schema; what it ignores are the fields of the chart's objects that controllers write."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/argocd.md").read_text(), re.MULTILINE | re.DOTALL)
    spec = yaml.safe_load(block)["spec"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (spec["source"]["chart"], spec["source"]["targetRevision"]) == (chart["name"], chart["version"])
    VALIDATOR.validate(merged(VALUES, spec["source"]["helm"]["valuesObject"]))
    kinds = set(re.findall(r"^kind: (\S+)$", "\n".join(TEMPLATES.values()), re.MULTILINE))
    assert {item["kind"] for item in spec["ignoreDifferences"]} <= kinds
    assert {kind for kind in kinds if kind.endswith("WebhookConfiguration")} <= {
        item["kind"] for item in spec["ignoreDifferences"]
    }


def test_the_dockerfile_makes_what_the_manifests_run() -> None:
    """No shell in the image, a user that is not root, and the targets that deploy/image/build knows."""
    text = (ROOT / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", text, flags=re.MULTILINE)
    assert [name for base, name in stages if base == "scratch"] == ["sbom", "agent"]
    assert re.search(r"^USER 65532:65532$", text, flags=re.MULTILINE)
    assert not re.search(r"--program (sh|bash|apt\S*|pip)\b", text)


def accepted_by(schema: Mapping[str, Any]) -> SearchStrategy[object]:
    """Return values that the schema of a key accepts. Texts of durations are left to the chart's template."""
    if "anyOf" in schema:
        return st.one_of([accepted_by(option) for option in schema["anyOf"] if option.get("type") != "string"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            numbers = st.integers(schema["minimum"], schema["maximum"])
            return numbers.filter(jsonschema.Draft7Validator(schema).is_valid)
        case "number":
            return st.floats(schema["minimum"], schema["maximum"])
        case "array":
            return st.lists(accepted_by(schema["items"]), max_size=3)
        case _:
            texts = st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
            return texts.filter(jsonschema.Draft7Validator(schema).is_valid)


# importedTraffic is a small language: the schema has its form, not that each cluster is named once.
@costly
@pytest.mark.parametrize(
    "key",
    [key for key in (*AGENT.keys, *CONTROLLER.keys) if key.path != "importedTraffic"],
    ids=lambda key: key.path,
)
@given(data=st.data())
def test_a_process_accepts_what_the_schema_accepts(key: Key, data: st.DataObject) -> None:
    """No value that Helm installs ends a process at its start."""
    key.value.parse(data.draw(accepted_by(key.value.schema)))
