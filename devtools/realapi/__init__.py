"""Real kube-apiserver and etcd processes (and kube-controller-manager where it is there), for lab and tests.

    with RealApiServer(directory) as api:
        client = ...(api.kubeconfig())

It takes the programs from where they are (`find`) and never builds or downloads any: `tests/kube/find-apiserver
--build` does.
"""

from __future__ import annotations

from devtools.realapi.binaries import Binaries, find
from devtools.realapi.server import RealApiServer

__all__ = ["Binaries", "RealApiServer", "find"]
