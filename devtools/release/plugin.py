"""The kubectl plugin for krew: an archive, and the manifest that krew reads.

The archive has the wheel, the lock of its dependencies and a program. When it first runs, the program makes a
virtual environment of them, from the package index that pip is configured for; that takes Python 3.11 and its
module venv. The publisher fills in where the archive is downloaded from: the manifest has a placeholder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from devtools.release.archives import File, compressed, packed

PROGRAM = """\
#!/bin/sh
# kubectl mcagent: runs the program of this plugin, and installs it for this user at its first start.
set -eu
here=$(dirname "$(readlink -f "$0")")
place=${{XDG_DATA_HOME:-$HOME/.local/share}}/mcagent/{version}
if [ ! -d "$place" ]; then
    python=${{PYTHON:-python3}}
    "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {{
        echo "kubectl mcagent: needs Python 3.11 or newer with the module venv (PYTHON=its path)" >&2
        exit 1
    }}
    echo "kubectl mcagent: installing {version} in $place" >&2
    rm -rf "$place.new"
    mkdir -p "$(dirname "$place")"
    "$python" -m venv "$place.new"
    install() {{ "$place.new/bin/python" -m pip install -q --disable-pip-version-check "$@"; }}
    install --require-hashes -r "$here/requirements.lock"
    install --no-deps "$here/{wheel}"
    rm -rf "$place"
    mv "$place.new" "$place"
fi
exec "$place/bin/python" -m mcagent.cli.main "$@"
"""
MANIFEST = """\
# kubectl krew install --manifest=mcagent.yaml --archive={archive}
# To publish it in an index, replace DOWNLOAD by the address of the release's files.
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: mcagent
spec:
  version: v{tag}
  homepage: DOWNLOAD
  shortDescription: Connect clusters, and find out why they are not
  description: |
    Installs mcagent, joins clusters into a ClusterSet, shows gateways, Services and traffic between clusters,
    diagnoses links, and traces packets. Needs Python 3.11; its packages are installed when it first runs.
  platforms:
    - selector: {{matchExpressions: [{{key: os, operator: In, values: [linux, darwin]}}]}}
      uri: DOWNLOAD/{archive}
      sha256: {digest}
      bin: kubectl-mcagent
"""


def files(version: str, tag: str, wheel: Path, lock: bytes, time: int) -> Iterator[tuple[str, bytes]]:
    """Yield the plugin's archive and manifest, with their names."""
    program = PROGRAM.format(version=version, wheel=wheel.name)
    content = {
        "kubectl-mcagent": File(program.encode(), executable=True),
        "requirements.lock": File(lock),
        wheel.name: File(wheel.read_bytes()),
    }
    archive = compressed(packed(content, time))
    name = f"kubectl-mcagent-{tag}.tar.gz"
    yield name, archive
    text = MANIFEST.format(archive=name, tag=tag, digest=hashlib.sha256(archive).hexdigest())
    yield "mcagent.yaml", text.encode()
