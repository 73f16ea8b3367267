"""WireGuard with fewer rights than the agent is given: CAP_NET_ADMIN alone."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from tests.contract.wireguard_nodes import missing

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

ROOT = Path(__file__).parents[2]
WORK = """
import logging, sys
from pathlib import Path
from mcagent.dataplane.wireguard.watch import WireGuardWatch
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeer
from tests.contract.inside import as_mapping
from tests.contract.wireguard_nodes import WireGuardNode, make, peer, random_key

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == int(sys.argv[3]), status["CapEff"]
node = WireGuardNode(1, "", Path(sys.argv[1]), WireGuardImplementation(sys.argv[2]))
backend = node.wireguard
wanted = [node.value(fwmark=7), peer(node, 0, successor=random_key()), peer(node, 1)]
if node.implementation is WireGuardImplementation.KERNEL:
    wanted += [node.value(1), peer(node, 0, device=node.devices[1])]
    assert node.value(1).loose_source_check
watch = WireGuardWatch(backend, lambda: None)
watch.start()
make(backend, wanted)
assert backend.observe() == as_mapping(wanted)
peers = [one for one in wanted if isinstance(one, WireGuardPeer)]
assert len(backend.statuses()) == len(peers) + 1  # the announced key is a peer of its own
watch.stop()
make(backend, [])
backend.close()
print("all done")
"""


@pytest.mark.skipif(not (shutil.which("setpriv") and shutil.which("unshare")), reason="needs util-linux")
@pytest.mark.parametrize("implementation", list(WireGuardImplementation))
def test_one_capability_is_enough(
    fresh_namespace: str, tmp_path: Path, implementation: WireGuardImplementation
) -> None:
    """Device, key, peers and watch."""
    reason = missing(implementation)
    if reason:
        pytest.skip(reason)
    limited = ["setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"]
    done = netns.execute(
        fresh_namespace,
        [*limited, sys.executable, "-c", WORK, str(tmp_path), implementation, str(1 << 12)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all done\n")
