"""The Helm chart as `helm package` makes it, and as `helm push` stores it in a registry.

`helm package` is not used: it writes the time of the day. Both forms have the version of the release.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import yaml

from devtools.release.archives import MANIFEST, REFERENCE, File, Json, Layout, as_json, compressed, packed
from devtools.release.tree import CHART, Tree

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_PEP440 = re.compile(
    r"(?P<release>\d+(?:\.\d+)*)(?P<pre>(?:a|b|rc)\d+)?(?:\.dev(?P<dev>\d+))?(?:\+(?P<local>.+))?"
)


def semantic(version: str) -> str:
    """Return the semantic version for a version of a Python package; without "+", which tags of images exclude."""
    match = _PEP440.fullmatch(version)
    if match is None:
        raise ValueError(f"no version of a package: {version}")
    numbers = [*match["release"].split("."), "0", "0"][:3]
    parts = [match["pre"], match["dev"] and f"dev.{match['dev']}", match["local"]]
    later = ".".join(part for part in parts if part)
    return ".".join(numbers) + (f"-{later}" if later else "")


def package(tree: Tree, version: str) -> bytes:
    """Return the chart as an archive, mcagent-VERSION.tgz."""
    directory = tree.directory / CHART
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    paths.sort(key=lambda path: path.name != "Chart.yaml")  # first, as Helm writes it
    files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
    files["Chart.yaml"] = re.sub(
        rb"(?m)^version: .*$", f"version: {version}".encode(), files["Chart.yaml"], count=1
    )
    return compressed(packed({f"mcagent/{path}": File(content) for path, content in files.items()}, tree.time))


def layout(tree: Tree, version: str, archive: bytes) -> bytes:
    """Return an OCI layout with the chart, as an archive: what a registry has after `helm push`."""
    chart: Json = yaml.safe_load((tree.directory / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    chart["version"] = version
    oci = Layout()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": oci.blob(as_json(chart), _CONFIG),
        "layers": [oci.blob(archive, _CONTENT)],
        "annotations": {
            "org.opencontainers.image.created": datetime.fromtimestamp(tree.time, UTC).isoformat(),
            "org.opencontainers.image.description": chart["description"],
            "org.opencontainers.image.title": chart["name"],
            "org.opencontainers.image.version": version,
        },
    }
    return oci.archive(oci.blob(as_json(manifest), MANIFEST) | {"annotations": {REFERENCE: version}}, tree.time)
