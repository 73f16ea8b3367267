"""Run in the image's root while it is built: every module can be imported, every program starts."""

import importlib
import pkgutil
import subprocess
import sys

PROGRAMS = (
    ("nft", "--version"),
    ("ovs-ofctl", "--version"),
    ("wireguard-go", "--version"),
    ("mcagent", "version"),
    ("mcagent", "deploy"),  # it has the manifests
)
# clients and protocols that are imported only where they are used
LATE = ("kubernetes.client.rest", "kubernetes.config", "ovs.db.idl", "pyroute2.netlink.generic.wireguard")

found = 0
for top in ("flows", "mcagent"):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, f"{top}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            found += 1
for name in LATE:
    importlib.import_module(name)
path = f"{sys.prefix}/bin:/usr/sbin:/usr/bin"
for program, argument in PROGRAMS:
    done = subprocess.run([program, argument], env={"PATH": path}, capture_output=True, text=True, check=True)
    sys.stdout.write(f"{program}: {(done.stdout or done.stderr).splitlines()[0]}\n")
sys.stdout.write(f"{found} modules imported\n")
