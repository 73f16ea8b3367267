"""The kernel's backends with no more than the agent is given: CAP_NET_ADMIN, and a /proc/sys that is read-only."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from devtools.nodes import netns

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
WORK = """
import ipaddress
from pathlib import Path
from mcagent.core.fragments.kernel import cluster_routes, device, netfilter, routing
from mcagent.agent.config import Settings
from mcagent.api.status import Status
from mcagent.doctor.checks.node import masquerade, routes, rp_filter
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings import chains, cni, switch, underlay
from mcagent.dataplane.facts import observe_facts
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.netlink.watch import NetlinkMonitor
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.config import Config
from tests.contract.inside import as_mapping, make

status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 1 << 12, status["CapEff"]
try:
    Path("/proc/sys/net/ipv4/conf/mc-gw0/rp_filter").write_text("0")
except OSError:
    pass
else:
    raise SystemExit("/proc/sys can be written: this shows nothing")
config = Config(node_name="a1")
node = ipaddress.ip_address("192.0.2.10")
facts = observe_facts(config, node, {})
assert node in facts.addresses
ours = {"route_tables": (28003, 28004), "route_protocol": 111, "devices": ("mc-gw0",)}
monitor = NetlinkMonitor(lambda: None, **ours, nft_table="mcagent")
monitor.start()
assert monitor._sockets
remote = [ipaddress.ip_network("10.20.0.0/16")]
for backend, wanted in (
    (
        NetlinkBackend(**ours),
        [*device(config, 1500, None), *routing(config), *cluster_routes(config, node, remote, [], 1450)],
    ),
    (NftBackend(table="mcagent"), netfilter(config, (ipaddress.ip_network("10.244.0.0/16"),))),
):
    make(backend, wanted)
    assert backend.observe() == as_mapping(wanted)
    backend.close()
known = {switch.switch: switch.Switch(), underlay.peers: {node: False}}
examined = ExaminedNode(Settings(core=config), Status(), readings=known)
found = examined.read(routes.lookups)
assert (found.rule_exists, [one.device for one in found.lookups]) == (True, ["mc-gw0"]), found
examined.read(underlay.underlay)
examined.read(rp_filter.return_devices)
examined.read(chains.chains)
assert examined.read(cni.programs).attached == ()
assert examined.read(cni.cnis) == ()
examined.read(masquerade.connections)
assert len(examined.read(masquerade.published_pods)) == 1
monitor.stop()
print("all done")
"""


@pytest.mark.skipif(not (shutil.which("setpriv") and shutil.which("unshare")), reason="needs util-linux")
def test_one_capability_is_enough(fresh_namespace: str) -> None:
    """Everything that core asks of the kernel is done and observed, also rp_filter and forwarding."""
    netns.add_veth("uplink", fresh_namespace, "underlay", fresh_namespace)
    netns.add_veth("mc-gw0", fresh_namespace, "bridge", fresh_namespace)
    netns.add_address(fresh_namespace, "uplink", "192.0.2.10/24")
    read_only = ["mount", "-o", "bind,ro", "/proc/sys", "/proc/sys"]
    limited = ["setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"]
    child = [*limited, sys.executable, "-c", WORK]
    done = netns.execute(
        fresh_namespace,
        ["unshare", "--mount", "sh", "-c", f'{" ".join(read_only)} && exec "$@"', "sh", *child],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all done\n"), done.stderr
