"""What the agent's configuration accepts, refuses, and how it says so."""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devtools.chart_schema import configuration
from devtools.configuration_tables import filled, table
from mcagent.agent.config import KEYS, SCHEMA, load
from mcagent.agent.run import _reload
from mcagent.cli.common import setting_flags
from mcagent.config.reader import ConfigError, read
from mcagent.config.schema import LogFormat, Schema
from mcagent.controller.config import SCHEMA as CONTROLLER
from mcagent.model.config import SourceNat
from mcagent.model.dataplane.resources import Bfd, TunnelType
from mcagent.model.keys import values
from mcagent.model.keys.key import Key, keys_of, make_settings

REPOSITORY = Path(__file__).parents[2]


def write(tmp_path: Path, text: str) -> Path:
    """Make a configuration file."""
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    return file


def refused(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    """Return path and reason of every finding."""
    environ = {} if text.startswith("nodeName") else {"MCAGENT_NODE_NAME": "n1"}
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environ, {})
    return [(error.path, error.reason) for error in caught.value.errors]


def test_only_the_node_name_is_required() -> None:
    """Without a node name nothing starts, and the message says how to give it."""
    with pytest.raises(ConfigError, match=r"nodeName: required.*--node-name, MCAGENT_NODE_NAME"):
        load(None, {}, {})
    assert load(None, {}, {"nodeName": "n1"}).core.node_name == "n1"


def test_a_part_of_antreas_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    """The keys below `multicluster:` of an Antrea agent mean what they mean there."""
    settings = load(
        write(
            tmp_path,
            """
            multicluster:
              enableGateway: true
              namespace: kube-system
              enableStretchedNetworkPolicy: false
              enablePodToPodConnectivity: true
              trafficEncryptionMode: "NONE"
              wireGuard:
                port: 51999
            podCIDRs: ["", 10.10.0.0/16]
            nodeName: worker-1
            """,
        ),
        {},
        {},
    )
    assert settings.core.namespace == "kube-system"
    assert settings.core.enable_pod_to_pod
    assert settings.core.wireguard_port == 51999
    assert settings.core.pod_cidrs == (ip_network("10.10.0.0/16"),)


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """The nearer a value is to the command line, the more it counts."""
    file = write(tmp_path, "nodeName: f\nmtu: 1400\nlogFormat: json\nsourceNAT: always\n")
    settings = load(file, {"MCAGENT_NODE_NAME": "e", "MCAGENT_MTU": "1300"}, {"nodeName": "flag"})
    assert settings.core.node_name == "flag"
    assert settings.core.mtu == 1300
    assert settings.log_format is LogFormat.JSON
    assert settings.core.source_nat is SourceNat.ALWAYS
    assert settings.core.tunnel_type is TunnelType.GENEVE


def test_bfd_is_configured_by_nested_keys(tmp_path: Path) -> None:
    """Intervals become milliseconds; false switches it off for both kinds of tunnels."""
    file = write(tmp_path, "nodeName: n\nbfd:\n  local: {interval: 33ms}\n  remote:\n    multiplier: 5\n")
    core = load(file, {"MCAGENT_BFD_REMOTE_INTERVAL": "0.3"}, {}).core
    assert core.bfd_local == Bfd(min_tx=33, min_rx=33, mult=3)
    assert core.bfd_remote == Bfd(min_tx=300, min_rx=300, mult=5)
    assert core.bfd_remote_adapt
    assert not load(file, {}, {"bfd.remote.adapt": "false"}).core.bfd_remote_adapt
    core = load(file, {}, {"bfd.enable": "false"}).core
    assert (core.bfd_local, core.bfd_remote) == (None, None)


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("enableGatway: true", "enableGatway", 'did you mean "enableGateway"'),
        ("multicluster: {podCidrs: []}", "multicluster.podCidrs", 'did you mean "podCIDRs"'),
        ("wireGuard: {prot: 1}", "wireGuard.prot", 'did you mean "wireGuard.port"'),
        ("multicluster: {enable: true}", "multicluster.enable", 'use "enableGateway"'),
        ("serviceCIDR: 10.0.0.0/16", "serviceCIDR", "controller's configuration"),
        ("wireGuard: 51821", "wireGuard", "must be a mapping"),
        ("multicluster: [1]", "multicluster", "must be a mapping"),
        ("mtu: big", "mtu", 'must be 0 or a whole number from 576 to 65485, not "big"'),
        ("mtu: true", "mtu", "not True"),
        ("enableGateway: 'yes'", "enableGateway", "must be true or false"),
        ("tunnelType: genev", "tunnelType", 'must be geneve or vxlan, not "genev" (did you mean "geneve"?)'),
        ("trafficEncryptionMode: ipsec", "trafficEncryptionMode", 'must be none or wireGuard, not "ipsec"'),
        ("trafficEncryptionMode: wireGuard\ndatapath: netdev", "datapath", "only the kernel's can be encrypted"),
        ("trafficEncryptionMode: wireGuard\nwireGuard: {port: 6081}", "wireGuard.port", "tunnels' port"),
        ("wireGuard: {deviceName: mc-gw0}", "wireGuard.deviceName", "must differ from hostPort"),
        ("encryptionFallback: allow", "encryptionFallback", 'did you mean "allowClear"'),
        ("bfd: {remote: {intervall: 1s}}", "bfd.remote.intervall", 'did you mean "bfd.remote.interval"'),
        ("bfd: {local: 100ms}", "bfd.local", "must be a mapping"),
        ("bfd: {local: {interval: 1ms}}", "bfd.local.interval", "a duration from 10ms to 10s"),
        ("gateways: active-pasive", "gateways", 'did you mean "active-'),
        ("podCIDRs: 10.0.0.0/16", "podCIDRs", "must be a list of CIDRs"),
        ("podCIDRs: [10.0.0.0/16, 10.1]", "podCIDRs[1]", "not a CIDR: 10.1"),
        ("podCIDRs: [10.0.0.0/16, '10.1']", "podCIDRs[1]", 'not a CIDR: "10.1"'),
        ("podCIDRs: [127.1.0.0/16]", "podCIDRs[0]", "loopback"),
        ("podCIDRs: [169.254.0.0/16]", "podCIDRs[0]", "link-local"),
        ("podCIDRs: [224.1.0.0/16]", "podCIDRs[0]", "multicast"),
        ("podCIDRs: [0.0.0.0/8]", "podCIDRs[0]", "this network"),
        ("podCIDRs: [8.0.0.0/5]", "podCIDRs[0]", "shorter than /8"),
        ("podCIDRs: ['fd00::/64']", "podCIDRs[0]", "IPv6 is not available"),
        ("podCIDRs: [10.0.0.0/16, 10.0.128.0/17]", "podCIDRs[1]", "overlaps 10.0.0.0/16 (podCIDRs[0])"),
        ("conntrackZoneBase: 0", "conntrackZoneBase", "from 1 to 65532"),
        ("conntrackZoneBase: 65534", "conntrackZoneBase", "from 1 to 65532"),
        ("routeTable: 254", "routeTable", '"main"'),
        ('importedTraffic: "local"', "importedTraffic", "needs clusterID"),
        ("clusterID: home\nimportedTraffic: Local", "importedTraffic", "is not a cluster"),
        ("routeProtocol: 12", "routeProtocol", "bird"),
        ("rulePriority: 32766", "rulePriority", "from 1 to 32764"),
        ("nftTable: filter", "nftTable", "iptables-nft"),
        ("hostPort: br-mc", "hostPort", "must differ from bridge"),
        ("bridge: mcr-1", "bridge", "has a prefix of our tunnel ports"),
        ("bridge: a-name-that-is-too-long", "bridge", "at most 15"),
        ("source: http://x", "source", '"kube" or "dir:"'),
        ("ovsdb: tcp:1.2.3.4:6640", "ovsdb", '"unix:"'),
        ("listen: nowhere", "listen", "address:port"),
        ("listen: 1.2.3.400:80", "listen", "address:port"),
        ("listen: ':70000'", "listen", "address:port"),
        ("listen: '[:]:80'", "listen", "address:port"),
        ("listen: '[1.2.3.4]:80'", "listen", "address:port"),
        ("listen: '[1::2::3]:80'", "listen", "address:port"),
        ("listen: '[1:2:3:4:5:6:7:8:9]:80'", "listen", "address:port"),
        ("listen: ':10361'", "healthListen", "must differ from listen: both are port 10361"),
        ("listen: '[::]:10361'", "healthListen", "must differ from listen"),
        ("resyncPeriod: 10 minutes", "resyncPeriod", "such as 30s or 1m30s"),
        ("resyncPeriod: 0", "resyncPeriod", "from 1s"),
        ("nodeName: Node_1", "nodeName", "DNS name"),
        ("nodeName: ''", "nodeName", "must not be empty"),
    ],
)
def test_bad_values_are_refused_with_path_and_what_would_be_right(
    tmp_path: Path, text: str, path: str, reason: str
) -> None:
    """Each finding names the key as it was written and says what is wrong with it."""
    ((found_path, found_reason),) = refused(tmp_path, text)
    assert found_path == path
    assert reason in found_reason


def test_every_finding_is_told_at_once(tmp_path: Path) -> None:
    """Three errors need one round of mending, not three."""
    error = refused(tmp_path, "mtu: 1\nnone: 1\npodCIDRs: [x, 10.0.0.0/16, y]\n")
    assert [path for path, _ in error] == ["mtu", "none", "podCIDRs[0]"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mtu: 1400\nmtu: 1300\n", 'key "mtu" is given twice'),
        ("mtu: [1400\n", "is not YAML: line 2: expected ',' or ']', but got '<stream end>'"),
        ("mtu: \0\n", "is not YAML: special characters are not allowed"),
        ("- mtu\n", "must be a mapping"),
        ("mtu: 1400\nclusterID: 2026-13-45\n", 'line 2: "2026-13-45" is no timestamp; put text into quotes'),
        ("clusterID: 0x_\n", 'line 1: "0x_" is no int'),
        ("? [mtu]\n: 1400\n", "line 1: found unhashable key"),
        ("mtu: 1400\nmulticluster: {mtu: 1300}\n", "at top level and below multicluster"),
    ],
)
def test_files_that_say_two_things_or_nothing_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """A file is never half understood."""
    assert reason in refused(tmp_path, text)[0][1]


def test_a_file_of_another_encoding_is_refused(tmp_path: Path) -> None:
    """In words, not with the decoder's."""
    (tmp_path / "agent.yaml").write_bytes(b'clusterID: "\xff"\n')
    with pytest.raises(ConfigError, match=r"agent\.yaml: cannot be read: it is not UTF-8$"):
        load(tmp_path / "agent.yaml", {"MCAGENT_NODE_NAME": "n1"}, {})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A configuration that was named but is not there is not passed over."""
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        load(tmp_path / "missing.yaml", {"MCAGENT_NODE_NAME": "n1"}, {})


def test_commands_read_the_file_of_the_agent_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file is named the one that manifests and unit use is read, if it is there."""
    monkeypatch.delenv(SCHEMA.file_variable, raising=False)
    file = tmp_path / "agent.yaml"
    schema = replace(SCHEMA, default_file=str(file))
    parser = ArgumentParser()
    setting_flags.add_key_flags(parser, schema)
    assert setting_flags.read_flags(parser.parse_args([]), schema)[0] is None
    file.write_text("listen: :10360\n")
    assert setting_flags.read_flags(parser.parse_args([]), schema)[0] == file
    assert setting_flags.read_flags(parser.parse_args(["--config", "other"]), schema)[0] == Path("other")


def test_an_empty_key_means_its_default(tmp_path: Path) -> None:
    """Templates leave keys without values behind."""
    settings = load(write(tmp_path, "mtu:\nwireGuard:\nmulticluster:\n"), {"MCAGENT_NODE_NAME": "n1"}, {})
    assert settings.core.mtu == 0


def test_environment_is_checked_too() -> None:
    """A misspelled variable is refused; what Kubernetes adds for Services is not ours."""
    with pytest.raises(ConfigError, match=r"environment MCAGENT_NODENAME: unknown key.*MCAGENT_NODE_NAME"):
        load(None, {"MCAGENT_NODENAME": "n1", "MCAGENT_NODE_NAME": "n1"}, {})
    with pytest.raises(ConfigError, match="environment MCAGENT_MTU: must be"):
        load(None, {"MCAGENT_MTU": "x", "MCAGENT_NODE_NAME": "n1"}, {})
    service_links = {"MCAGENT_SERVICE_HOST": "1.2.3.4", "MCAGENT_SERVICE_PORT": "80", "MCAGENT_PORT_80_TCP": "x"}
    load(None, {"MCAGENT_NODE_NAME": "n1", "MCAGENT_CONFIG": "x", **service_links}, {})


def test_flags_are_checked_too() -> None:
    """A bad flag is named as the flag."""
    with pytest.raises(ConfigError, match="flag --conntrack-zone-base: must be a whole number"):
        load(None, {}, {"nodeName": "n1", "conntrackZoneBase": "0"})


def test_durations_read_like_gos() -> None:
    """Seconds, minutes and mixtures."""
    for text, seconds in (("90s", 90.0), ("1m30s", 90.0), ("1500ms", 1.5), ("2", 2.0), ("1h", 3600.0)):
        assert load(None, {}, {"nodeName": "n1", "resyncPeriod": text}).resync_period == seconds


@pytest.mark.parametrize(
    "key", [key for key in (*KEYS, *CONTROLLER.keys) if not key.required], ids=lambda key: key.path
)
def test_every_default_is_itself_accepted(key: Key) -> None:
    """What the table shows as default can be given as a flag."""
    assert key.value.parse_text(key.value.show(key.default).strip('"[]')) == key.default


def test_names_of_keys_variables_and_flags_are_unique() -> None:
    """No two keys share a variable or a flag."""
    for names in ([key.path for key in KEYS], [key.variable for key in KEYS], [key.flag for key in KEYS]):
        assert len(set(names)) == len(names)


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.lists(st.text(max_size=3)))
_WORDS = st.one_of(st.text(max_size=12), st.sampled_from([key.path for key in KEYS]), st.just("multicluster"))


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A declaration of this test, below another one."""

    depth: Annotated[int, Key("tank.maxDepth", values.integer(1, 9), "Depth of the tank.")] = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A declaration of this test."""

    inner: Inner
    name: Annotated[str, Key("tankName", values.DNS_LABEL, "Name of the tank.", reloadable=True)]
    remarks: tuple[str, ...] = ()


TANK = Schema(keys=keys_of(Outer), prefix="TANK_", file_variable="TANK_CONFIG", default_file="/nowhere.yaml")


def test_a_declared_key_is_in_file_environment_flags_documentation_and_schema(tmp_path: Path) -> None:
    """The annotation of the field is all that a key needs."""
    parsed = read(TANK, write(tmp_path, "tank: {maxDepth: 4}\ntankName: a\n"), {"TANK_TANK_MAX_DEPTH": "5"}, {})
    assert make_settings(Outer, parsed.values) == Outer(name="a", inner=Inner(depth=5))
    parser = ArgumentParser()
    setting_flags.add_key_flags(parser, TANK)
    _, flags = setting_flags.read_flags(parser.parse_args(["--tank-max-depth", "6"]), TANK)
    assert read(TANK, None, {}, flags).values == {"tank.maxDepth": 6}
    depth, name = TANK.keys
    assert (depth.default, depth.required, name.required, name.reloadable) == (3, False, True, True)
    assert depth.value_in(Outer(name="b", inner=Inner(depth=7))) == 7
    assert table(TANK.keys).splitlines()[2:] == [
        "| `tank.maxDepth` | `3` | a whole number from 1 to 9 | Depth of the tank. |",
        "| `tankName` ᴿ | (required) | a DNS label (lower-case letters, digits, -) | Name of the tank. |",
    ]
    properties = configuration(TANK)["properties"]
    assert properties["tank"]["properties"]["maxDepth"]["maximum"] == 9
    assert "tankName" in properties


@pytest.mark.parametrize("schema", [SCHEMA, CONTROLLER], ids=["agent", "controller"])
def test_every_derived_artefact_lists_exactly_the_declared_keys(schema: Schema) -> None:
    """Documentation and the chart's schema have each key once; flags are compared in test_cli.py."""

    def paths(node: dict[str, Any], above: str = "") -> Iterator[str]:
        for name, value in node["properties"].items():
            yield from paths(value, f"{above}{name}.") if "properties" in value else [above + name]

    declared = [key.path for key in schema.keys]
    documented = (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8")
    begin = f"table of the {'agent' if schema is SCHEMA else 'controller'}: made by"
    rows = documented.partition(begin)[2].partition("<!-- end")[0].splitlines()
    assert sorted(row.split("`")[1] for row in rows if row.startswith("| `")) == sorted(declared)
    chart = json.loads((REPOSITORY / "deploy/helm/mcagent/values.schema.json").read_text(encoding="utf-8"))
    part = chart["properties"]["agent" if schema is SCHEMA else "member"]["properties"]["config"]
    assert sorted(paths(part)) == sorted([*declared, *schema.constants])


def test_a_reload_changes_reloadable_keys_only() -> None:
    """Every key that names or tags a resource, or configures a server, needs a restart."""
    reloadable = {key.path for key in KEYS if key.reloadable}
    assert {"mtu", "enableGateway", "logLevel", "podCIDRs"} <= reloadable
    assert not reloadable & {"bridge", "hostPort", "routeTable", "nftTable", "listen", "nodeName", "tunnelType"}
    assert not any(key.reloadable for key in CONTROLLER.keys)


@given(st.dictionaries(_WORDS, st.one_of(_SCALARS, st.dictionaries(_WORDS, _SCALARS, max_size=3)), max_size=5))
def test_no_file_makes_anything_but_settings_or_a_refusal(content: dict[str, object]) -> None:
    """Whatever a file holds, the answer is a value or a ConfigError."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "agent.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        with contextlib.suppress(ConfigError):
            assert load(file, {}, {"nodeName": "n1"}).core.node_name == "n1"


def test_the_documented_tables_are_current() -> None:
    """docs/configuration.md shows every key of agent and controller as the program has it."""
    text = (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8")
    assert filled(text) == text, "run: python -m devtools.configuration_tables docs/configuration.md"


def test_variables_of_the_lab_and_the_tests_are_none_of_the_agents() -> None:
    """Where a test kernel is, or what a failed lab leaves, may be set around an agent."""
    around = {"MCAGENT_TEST_KERNEL": "/kernel", "MCAGENT_LAB_FAILURES": "/failures"}
    assert load(None, around, {"nodeName": "n1"}).core.node_name == "n1"


@pytest.mark.parametrize(
    "text",
    [
        'featureGates:\n  Multicluster: true\nmulticluster:\n  enableGateway: true\n  namespace: ""\n',
        "featureGates: {Multicluster: true}\nmulticluster: {trafficEncryptionMode: wireGuard}\n",
        "featureGates: {Multicluster: true}\nmulticluster: {enablePodToPodConnectivity: true}\n",
    ],
)
def test_the_agents_configuration_of_antreas_guides_is_accepted(tmp_path: Path, text: str) -> None:
    """As its guides have it, with feature gates; that these are ignored is said."""
    settings = load(write(tmp_path, text), {"MCAGENT_NODE_NAME": "n1"}, {})
    (remark,) = settings.remarks
    assert "featureGates: are Antrea's: ignored" in remark


@pytest.mark.parametrize("key", ["podCIDRs", "serviceCIDRs", "allowedRemoteCIDRs", "protectedCIDRs"])
def test_host_bits_of_networks_are_cleared(tmp_path: Path, key: str) -> None:
    """As Kubernetes' own components read a CIDR; a remark in the log says so."""
    settings = load(write(tmp_path, f"{key}: [10.1.0.5/16]"), {"MCAGENT_NODE_NAME": "n1"}, {})
    (declaration,) = (candidate for candidate in KEYS if candidate.path == key)
    assert declaration.value_in(settings) == (ip_network("10.1.0.0/16"),)
    (remark,) = settings.remarks
    assert remark.endswith(f"{key}: 10.1.0.5/16 has host bits set: used as 10.1.0.0/16")


def test_a_reload_logs_remarks_as_a_start_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each once: those of the former configuration are in the log already."""
    environment = {"MCAGENT_NODE_NAME": "n1"}
    agent = Mock(settings=load(write(tmp_path, "podCIDRs: [10.1.0.5/16]"), environment, {}))
    second = write(tmp_path, "podCIDRs: [10.1.0.5/16]\nprotectedCIDRs: [10.2.0.5/16]")
    new = load(second, environment, {})
    with caplog.at_level(logging.INFO):  # restores the level, which the reload sets
        _reload(agent, lambda: new)
    agent.reconfigure.assert_called_once_with(new)
    (remark,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert remark.endswith("protectedCIDRs: 10.2.0.5/16 has host bits set: used as 10.2.0.0/16")
