"""The archives of a release: a layout of an image as `docker load` reads it, with bytes that content decides."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from devtools.release.archives import MANIFEST, File, as_json, digest_of, file_of_image, image_archive, packed

LAYER = "application/vnd.oci.image.layer.v1.tar"


def layout(directory: Path) -> Path:
    """Write an OCI layout as buildah does: an image of two layers, both with the file /list."""

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = digest_of(content)
        path = directory / "blobs" / digest.replace(":", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    layers = [blob(packed({"list": File(text)}, time=1), LAYER) for text in (b"below", b"above")]
    config = blob(as_json({"architecture": "arm64", "os": "linux"}), "application/vnd.oci.image.config.v1+json")
    manifest = blob(as_json({"schemaVersion": 2, "config": config, "layers": layers}), MANIFEST)
    (directory / "index.json").write_bytes(as_json({"schemaVersion": 2, "manifests": [manifest]}))
    return directory


def test_an_archive_of_an_image_can_be_loaded(tmp_path: Path) -> None:
    """It is an OCI layout, with the file by which `docker load` and `kind load` find name, config and layers."""
    content = image_archive(layout(tmp_path), "mcagent", "0.1.0", time=7)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        text = {name: file.read() for name, file in files.items() if file is not None}
        times = {entry.mtime for entry in archive.getmembers()}
    (saved,) = json.loads(text["manifest.json"])
    (named,) = json.loads(text["index.json"])["manifests"]
    manifest = json.loads(text["blobs/" + named["digest"].replace(":", "/")])
    assert saved["RepoTags"] == ["mcagent:0.1.0"]
    assert {saved["Config"], *saved["Layers"]} <= text.keys()
    assert saved["Layers"] == ["blobs/" + layer["digest"].replace(":", "/") for layer in manifest["layers"]]
    assert named["annotations"]["io.containerd.image.name"].endswith("/mcagent:0.1.0")
    assert json.loads(text["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    assert times == {7}


def test_an_upper_layer_replaces_files_of_a_lower_one(tmp_path: Path) -> None:
    """The list of the Open vSwitch image is its own, not that of the agent's layer below."""
    assert file_of_image(layout(tmp_path), "list") == b"above"
    with pytest.raises(FileNotFoundError):
        file_of_image(layout(tmp_path), "absent")
