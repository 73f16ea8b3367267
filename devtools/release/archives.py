"""Archives whose bytes depend on their content only, and OCI image layouts in such archives.

Owns the formats: tar, the OCI Image Layout Specification 1.0, and beside an image in it the file manifest.json of
`docker save`, so that `docker load`, `kind load` and `ctr images import` read it, too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class File:
    """A file of an archive."""

    content: bytes
    executable: bool = False


def packed(files: Mapping[str, File], time: int) -> bytes:
    """Return a tar archive with these files, by their paths; `time`: of all of them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, file in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(file.content), time, 0o755 if file.executable else 0o644
            archive.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def compressed(content: bytes) -> bytes:
    """Return content compressed by gzip, without a time or a name in its header."""
    return gzip.compress(content, mtime=0)


def digest_of(content: bytes) -> str:
    """Return the digest by which OCI names content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def as_json(value: Json | list[Json]) -> bytes:
    """Return the text of JSON: the same value, the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Layout:
    """An OCI image layout that is being filled."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def blob(self, content: bytes, media_type: str) -> Json:
        """Add content; return its descriptor."""
        digest = digest_of(content)
        self._blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def archive(self, manifest: Json, time: int, more: Mapping[str, bytes] | None = None) -> bytes:
        """Return the layout as an archive; `manifest`: the descriptor in its index, `more`: files beside."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}
        files = {
            "oci-layout": as_json({"imageLayoutVersion": "1.0.0"}),
            "index.json": as_json(index),
            **(more or {}),
        }
        files |= {f"blobs/{digest.replace(':', '/')}": self._blobs[digest] for digest in sorted(self._blobs)}
        return packed({path: File(content) for path, content in files.items()}, time)


def image_archive(layout: Path, name: str, tag: str, time: int) -> bytes:
    """Return the archive of the only image of a directory with an OCI layout, named NAME:TAG for `docker load`."""
    index = json.loads((layout / "index.json").read_bytes())
    (descriptor,) = index["manifests"]
    manifest = json.loads(_blob(layout, descriptor))
    archive = Layout()
    for part in (manifest["config"], *manifest["layers"]):
        archive.blob(_blob(layout, part), part["mediaType"])
    named = archive.blob(_blob(layout, descriptor), MANIFEST)
    named["annotations"] = {"io.containerd.image.name": f"docker.io/library/{name}:{tag}", REFERENCE: tag}
    saved = {
        "Config": _path(manifest["config"]),
        "RepoTags": [f"{name}:{tag}"],
        "Layers": [_path(layer) for layer in manifest["layers"]],
    }
    return archive.archive(named, time, {"manifest.json": as_json([saved])})


def file_of_image(layout: Path, path: str) -> bytes:
    """Return a file of the only image of a directory with an OCI layout, from the uppermost layer with it."""
    (descriptor,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    for layer in reversed(json.loads(_blob(layout, descriptor))["layers"]):
        with tarfile.open(layout / _path(layer)) as content:
            if path in content.getnames():
                file = content.extractfile(path)
                assert file is not None
                return file.read()
    raise FileNotFoundError(path)


def _path(descriptor: Json) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")


def _blob(layout: Path, descriptor: Json) -> bytes:
    return (layout / _path(descriptor)).read_bytes()
