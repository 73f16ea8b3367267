"""The doctor's check of the CNI: what a Node shows of it, and the settings that connections need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mcagent.agent.config import Settings
from mcagent.api.doctor import FindingLevel
from mcagent.api.status import Status
from mcagent.dataplane.netlink.links import RawLink
from mcagent.dataplane.netlink.programs import DevicePrograms
from mcagent.dataplane.nft.observe import ForeignChain
from mcagent.doctor.checks.node import pod_path
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.cni import CniMode, CniName, configured_plugins, recognise
from mcagent.doctor.readings.pod_path import PodPath
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import Link, Rule
from mcagent.model.errors import BackendError
from tests.worlds.examined_node import findings, node, told

IPSEC = Rule(priority=1, table=200, fwmark=0xE00, fwmask=0xF00)
DSR = Rule(priority=32764, table=78, fwmark=0x1234, fwmask=0xFFFFFFFF)


def links(*names: str, down: str = "", mtus: Mapping[str, int] = MappingProxyType({})) -> dict[str, RawLink]:
    """Return devices that are up, but `down`; `mtus`: the MTU of devices with another than 1500."""
    entries = {**dict.fromkeys((*names, *([down] if down else [])), 1500), **mtus}
    return {
        name: RawLink(index=index, kind="tun", alias="", state=Link(name=name, mtu=mtu, up=name != down))
        for index, (name, mtu) in enumerate(entries.items(), start=1)
    }


def chain(name: str, *rules: str, table: str = "nat") -> ForeignChain:
    """Return a chain of another program."""
    return ForeignChain(family="ip", table=table, name=name, rules=rules)


TRANSLATES = chain("CILIUM_POST_nat", 'oifname != "cilium_*" counter packets 0 bytes 0 masquerade')
TRANSLATES_NOT = chain("CILIUM_POST_nat")
PROXY = chain("KUBE-SERVICES")


@pytest.mark.parametrize(
    ("devices", "chains", "rules", "words", "expected"),
    [
        (links("eth0"), (), (), (), ""),
        (links("antrea-gw0"), (), (), (), "Antrea"),
        (links("eth0", "eni12345"), (chain("AWS-SNAT-CHAIN-0"),), (), (), "AWS VPC CNI"),
        (links("cali12345"), (), (), (), "Calico"),
        (links("vxlan.calico"), (chain("cali-FORWARD"),), (), (), "Calico (VXLAN)"),
        (links("cali1", down="tunl0"), (), (), (), "Calico"),
        (links("cali1", "tunl0"), (), (), (), "Calico (IP in IP)"),
        (links("bpfin.cali", "wireguard.cali"), (), (), (), "Calico (WireGuard, eBPF dataplane)"),
        ({}, (chain("filter-FORWARD", table="calico"),), (), (), "Calico"),
        (links("cilium_host"), (), (), (), "Cilium"),
        (
            links("cilium_host", "cilium_vxlan"),
            (TRANSLATES, PROXY),
            (),
            (),
            "Cilium (VXLAN, masquerade by netfilter)",
        ),
        (
            links("cilium_host", "cilium_geneve", "cilium_wg0"),
            (TRANSLATES_NOT,),
            (IPSEC,),
            (),
            "Cilium (Geneve, WireGuard, IPsec, no masquerade by netfilter, no kube-proxy)",
        ),
        (
            links("cilium_host"),
            (TRANSLATES_NOT, chain("services", table="kube-proxy")),
            (),
            (),
            "Cilium (no masquerade by netfilter)",
        ),
        (links("flannel.1", "cni0"), (chain("FLANNEL-POSTRTG"),), (), (), "flannel (VXLAN)"),
        ({}, (chain("postrtg", table="flannel-ipv4"),), (), (), "flannel"),
        (links("flannel.1", "cali1"), (), (), (), "Calico and flannel (VXLAN)"),
        ({}, (chain("KIND-MASQ-AGENT"),), (), (), "kindnet"),
        ({}, (), (), ("kindnet", "ptp"), "kindnet"),
        (
            links("kube-bridge", "kube-dummy-if"),
            (),
            (DSR,),
            (),
            "kube-router (Services by IPVS, direct server return)",
        ),
        ({}, (chain("KUBE-ROUTER-FORWARD", table="filter"),), (), (), "kube-router"),
        (links("ovn-k8s-mp0"), (), (), (), "OVN-Kubernetes"),
    ],
)
def test_a_cni_is_recognised_by_what_it_leaves(
    devices: Mapping[str, RawLink],
    chains: tuple[ForeignChain, ...],
    rules: tuple[Rule, ...],
    words: tuple[str, ...],
    expected: str,
) -> None:
    """Devices, chains, tables, rules or configuration are enough, and show modes."""
    assert " and ".join(map(str, recognise(devices, chains, rules, words))) == expected


def test_every_cni_and_mode_has_words_of_its_own() -> None:
    """The names are those of the sections of docs/cni.md."""
    page = (Path(__file__).parents[2] / "docs/cni.md").read_text()
    for name in CniName:
        assert f"\n## {name}\n" in page
    assert len({str(mode) for mode in CniMode}) == len(CniMode)


def cilium(*masquerade: ForeignChain, port: int = 1450, **readings: Any) -> Any:
    """Return a Node with Cilium, and the host port of the userspace datapath."""
    devices = {"devices": links("cilium_host", mtus={"mc-gw0": port}), **readings}
    return node(chains=masquerade or (TRANSLATES_NOT,), **devices)


TCX = DevicePrograms(attached=("tcx egress: 1",))
UNSEEN = DevicePrograms(complete=False)
PODS = {**links("cilium_host", "lxc1", "lxc2"), **links(mtus={"mc-gw0": 1450})}
KERNEL_DATAPATH = {name: replace(link, kind="openvswitch") for name, link in PODS.items() if name[:3] != "lxc"}
TUNNEL_PODS = {**PODS, **links("cilium_vxlan")}


@pytest.mark.parametrize(
    ("examined", "reasons"),
    [
        (cilium(), {}),
        (cilium(TRANSLATES), {}),
        (cilium(programs=TCX), {"HostPortTaken": FindingLevel.FAILED}),
        (cilium(TRANSLATES, programs=TCX), {"HostPortPrograms": FindingLevel.WARNING}),
        (node(programs=TCX, devices=links("mc-gw0")), {"HostPortPrograms": FindingLevel.WARNING}),
        (cilium(programs=UNSEEN), {"HostPortMayBeTaken": FindingLevel.WARNING}),
        (cilium(TRANSLATES, programs=UNSEEN), {}),
        (cilium(programs=UNSEEN, devices=KERNEL_DATAPATH), {}),
        (node(programs=UNSEEN, devices=links("mc-gw0")), {}),
        (cilium(devices=PODS), {"PodMtuTooLarge": FindingLevel.WARNING}),
        (cilium(devices=TUNNEL_PODS), {}),
        (cilium(TRANSLATES, devices=PODS), {}),
    ],
)
def test_each_wrong_setting_has_its_reason(examined: Any, reasons: Mapping[str, FindingLevel]) -> None:
    """One setting, one reason; the same CNI with the right one is fine."""
    assert told(examined) == reasons


def test_the_remedy_names_setting_and_value() -> None:
    """Cilium's device list, and the MTU that fits."""
    (taken,) = (finding for finding in findings(cilium(programs=TCX)) if finding.reason)
    assert "devices: '!mc-gw0'" in taken.do
    (large,) = (finding for finding in findings(cilium(devices=PODS)) if finding.reason)
    assert "MTU: 1450 in Cilium's Helm values" in large.do


def test_an_untried_mode_is_told() -> None:
    """It is no fault, but nobody should believe that it was tested."""
    (line,) = (f for f in findings(node(devices=links("bpfin.cali"))) if f.check == "cni")
    assert (line.level, line.seen) == (
        FindingLevel.OK,
        "Calico (eBPF dataplane): never tried with mcagent (docs/cni.md)",
    )


def test_the_configuration_of_the_runtime_names_plugins(tmp_path: Path) -> None:
    """The first file counts, as for the container runtime. One that cannot be read is no absence of plugins."""
    assert list(configured_plugins(tmp_path / "none")) == []
    (tmp_path / "10-kindnet.conflist").write_text(json.dumps({"name": "kindnet", "plugins": [{"type": "ptp"}, 3]}))
    (tmp_path / "20-x.conf").write_text(json.dumps({"name": "x", "type": "bridge"}))
    (tmp_path / "05-kubeconfig").write_text("no configuration")
    assert list(configured_plugins(tmp_path)) == ["kindnet", "ptp"]
    (tmp_path / "10-kindnet.conflist").unlink()
    assert list(configured_plugins(tmp_path)) == ["x", "bridge"]
    for garbage in ("[]", '{"plugins": 3}'):
        (tmp_path / "00-y.conf").write_text(garbage)
        assert list(configured_plugins(tmp_path)) == []
    (tmp_path / "00-y.conf").write_text("{")
    with pytest.raises(BackendError, match="cni: read"):
        list(configured_plugins(tmp_path))


POD, REMOTE = IPv4Address("10.1.1.2"), IPv4Address("10.2.128.0")
GOOD_PATH = PodPath(pod=POD, remote=REMOTE, source=POD, delivered=True, answer_source=POD)


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, {""}),
        ({"source": None}, {"PodPacketsElsewhere"}),
        ({"source": IPv4Address("169.254.77.1")}, {"PodSourceTranslated"}),
        ({"delivered": False, "answer_source": None}, {"PodNotReached"}),
        ({"answer_source": None}, {"PodAnswersElsewhere"}),
        ({"answer_source": IPv4Address("169.254.77.1")}, {"PodSourceTranslated"}),
        ({"source": None, "answer_source": None}, {"PodPacketsElsewhere", "PodAnswersElsewhere"}),
    ],
)
def test_each_way_of_a_probed_pod_has_a_reason(change: Mapping[str, Any], reasons: set[str]) -> None:
    """What left, what came, and with which source; without the flag nothing is probed."""
    read: dict[Any, Any] = {pod_path.pod_paths: (GOOD_PATH, replace(GOOD_PATH, **change))}
    examined = ExaminedNode(Settings(core=Config(node_name="n")), Status(), readings=read, probed_pod="/x")
    assert {finding.reason for finding in pod_path.examine(examined)} == reasons
    assert list(pod_path.examine(ExaminedNode(examined.settings, Status(), readings=read))) == []


def test_a_node_without_other_clusters_has_nothing_to_probe() -> None:
    """The check is not made then, and says so."""
    settings = Settings(core=Config(node_name="n"))
    examined = ExaminedNode(settings, Status(), readings={pod_path.pod_paths: ()}, probed_pod="/x")
    assert [finding.level for finding in pod_path.examine(examined)] == [FindingLevel.SKIPPED]
