"""CNIs that this repository does not provide (Cilium, Calico, …): their files, from a directory of the user.

Owns the layout of $MCAGENT_CNI_DIRECTORY: a directory for each CNI, by its name, with

- `manifests`: YAML or JSON files, applied in the order of their names; see `PLACEHOLDERS`;
- `images`: archives of the images that they name (`docker save`), for every Node;
- `plugins`: programs for /opt/cni/bin of every Node, if the CNI does not install its plugins itself;
- `directories`: a file with the directories of the machine, one on each line, that every Node has for itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from devtools.errors import LabError
from devtools.lab.topology import Cluster

VARIABLE = "MCAGENT_CNI_DIRECTORY"
PLACEHOLDERS = ("POD_CIDR", "SERVICE_CIDR", "API_SERVER", "UPLINK")
"""Names that `${NAME}` in a manifest stands for: CIDRs, the API server's address, the device to other Nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCni:
    """A CNI by its name, and its directory."""

    name: str
    directory: Path

    def archives(self) -> list[Path]:
        """Return the archives of its images."""
        return sorted((self.directory / "images").glob("*.tar"))

    def plugins(self) -> list[Path]:
        """Return the programs for /opt/cni/bin."""
        return sorted(path for path in (self.directory / "plugins").glob("*") if path.is_file())

    def own_directories(self) -> tuple[str, ...]:
        """Return the directories that a Node has for itself, without the leading slash."""
        path = self.directory / "directories"
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(place for line in lines if (place := line.strip().strip("/")))

    def manifests(self, cluster: Cluster, uplink: str) -> Iterator[str]:
        """Yield the manifests of a cluster."""
        values = (cluster.pod_cidr, cluster.service_cidr, cluster.nodes[0].address, uplink)
        for path in sorted((self.directory / "manifests").iterdir()):
            text = path.read_text()
            for name, value in zip(PLACEHOLDERS, values, strict=True):
                text = text.replace(f"${{{name}}}", str(value))
            yield text


def names(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of all external CNIs; none without the variable. Raises LabError."""
    if not (place := environment.get(VARIABLE)):
        return ()
    try:
        return tuple(sorted(path.parent.name for path in Path(place).glob("*/manifests")))
    except OSError as error:
        raise LabError(f"{VARIABLE}: {error}") from None


def find(name: str, environment: Mapping[str, str] = os.environ) -> ExternalCni:
    """Return an external CNI. Raises LabError that says what there is."""
    if not (place := environment.get(VARIABLE)):
        raise LabError(f"no CNI {name}: {VARIABLE} names no directory with others (docs/real-nodes.md)")
    if name not in names(environment):
        raise LabError(f"no CNI {name}: {place} has {', '.join(names(environment)) or 'no NAME/manifests'}")
    return ExternalCni(name=name, directory=Path(place).absolute() / name)
