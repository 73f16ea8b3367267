"""The files of a release: the same for the same commit, named by its tag, and usable (`make test-release`)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.release.chart import semantic
from tests.worlds.apiservers import leave_out

ROOT = Path(__file__).parents[2]
CHART = "deploy/helm/mcagent"
VERSION = str(yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())["appVersion"])
WHEEL = f"mcagent-{VERSION}-py3-none-any.whl"
pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository with the files of this tree in one commit."""

    directory: Path

    def git(self, *arguments: str) -> str:
        """Run git; return what it prints."""
        identity = {
            f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        dates = {"GIT_AUTHOR_DATE": "2026-11-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-11-01T00:00:00Z"}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.directory,
            env=os.environ | identity | dates,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def release(self, out: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Make the files of a release, without images."""
        command = [sys.executable, "-m", "devtools.release", "--without-images", "--out", str(out)]
        variables = os.environ | {"PYTHONPATH": str(self.directory)} | dict(environment or {})
        return subprocess.run(
            command, cwd=self.directory, env=variables, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Give a repository with this tree, whose commit has the tag of its version."""
    directory = tmp_path_factory.mktemp("repository")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
    repository = Repository(directory)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.git("add", "--all")
    repository.git("commit", "--quiet", "--message=release")
    repository.git("tag", f"v{VERSION}")
    return repository


@pytest.fixture(scope="module")
def release(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory with the files of a release."""
    out = tmp_path_factory.mktemp("release") / "one"
    done = repository.release(out)
    assert done.returncode == 0, done.stderr
    return out


def test_two_builds_of_a_release_are_identical(repository: Repository, release: Path, tmp_path: Path) -> None:
    """Another directory, time zone, language and umask change no byte of any file."""
    again = tmp_path / "again"
    mask = os.umask(0o077)
    try:
        done = repository.release(again, {"TZ": "Asia/Tokyo", "LC_ALL": "C", "TMPDIR": str(tmp_path)})
    finally:
        os.umask(mask)
    assert done.returncode == 0, done.stderr
    first, second = (
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in place.iterdir()}
        for place in (release, again)
    )
    assert first == second
    assert {WHEEL, f"mcagent-{VERSION}.tgz", f"mcagent-{VERSION}.spdx.json", "SHA256SUMS"} <= first.keys()


def test_checksums_are_those_of_all_files(release: Path) -> None:
    """`sha256sum --check` passes, and no file lacks its line."""
    subprocess.run(["sha256sum", "--quiet", "--strict", "--check", "SHA256SUMS"], cwd=release, check=True)
    listed = {line.split("  ")[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert listed == {file.name for file in release.iterdir()} - {"SHA256SUMS"}


def test_the_wheel_has_the_version_the_manifests_and_the_types(release: Path, tmp_path: Path) -> None:
    """Unpacked alone, it reports its version, prints the manifests of that version, and is marked as typed."""
    with zipfile.ZipFile(release / WHEEL) as wheel:
        wheel.extractall(tmp_path)
    assert (tmp_path / "mcagent/py.typed").is_file()
    assert (tmp_path / "flows/py.typed").is_file()

    def printed(*arguments: str) -> str:
        command = [sys.executable, "-m", "mcagent.cli.main", *arguments]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert printed("version") == f"mcagent {VERSION}\n"
    images = {
        container["image"]
        for obj in yaml.safe_load_all(printed("deploy", "--clusterid", "east"))
        if obj["kind"] in ("DaemonSet", "Deployment")
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"mcagent:{VERSION}", f"mcagent-openvswitch:{VERSION}"}


def test_the_locked_packages_are_there_for_arm64(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With the hashes of the lock, for the image's Python: of compiled packages wheels, else pure Python."""
    (version,) = set(re.findall(r"python(3\.\d+)\b", (ROOT / "Dockerfile").read_text()))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--no-deps"]
    command += ["--target", str(tmp_path / "target"), "--report", str(report), "--python-version", version]
    command += ["--implementation=cp", "--platform=manylinux_2_28_aarch64", "--platform=manylinux2014_aarch64"]
    command += ["--require-hashes", "-r", str(ROOT / ".ci/requirements.lock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "connection" in done.stderr.lower():
        leave_out(request, "no package index can be reached")
    assert done.returncode == 0, done.stderr
    files = [Path(item["download_info"]["url"]).name for item in json.loads(report.read_text())["install"]]
    compiled = [file for file in files if file.endswith("_aarch64.whl")]
    assert any(file.startswith("msgspec-") for file in compiled)
    without_wheel = [file for file in files if file not in compiled and not file.endswith("-none-any.whl")]
    assert {file.partition("-")[0] for file in without_wheel} <= {"ovs"}  # whose C extension is optional


def test_the_bill_of_materials_lists_what_is_locked(release: Path) -> None:
    """Each package of the lock for Linux, with its version, and mcagent itself."""
    document = json.loads((release / f"mcagent-{VERSION}.spdx.json").read_text())
    listed = {(package["name"], package["versionInfo"]) for package in document["packages"]}
    lock = (ROOT / ".ci/requirements.lock").read_text()
    locked = set(re.findall(r"^([\w.-]+)==([\w.]+)(?!.*win32)", lock, flags=re.MULTILINE))
    assert ("urllib3", dict(locked)["urllib3"]) in locked
    assert listed == locked | {("mcagent", VERSION)}
    assert document["creationInfo"]["created"] == "2026-11-01T00:00:00Z"


def test_the_plugin_is_the_one_that_its_manifest_names(release: Path, tmp_path: Path) -> None:
    """krew's checksum is that of the archive, and its program runs the environment that it once installed."""
    (platform,) = yaml.safe_load((release / "mcagent.yaml").read_text())["spec"]["platforms"]
    archive = release / platform["uri"].removeprefix("DOWNLOAD/")
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "plugin", filter="data")
    with zipfile.ZipFile(tmp_path / "plugin" / WHEEL) as wheel:
        wheel.extractall(tmp_path / "packages")
    program = tmp_path / f"data/mcagent/{VERSION}/bin/python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(
        [tmp_path / "plugin" / platform["bin"], "version"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"mcagent {VERSION}\n"


def test_a_commit_without_a_tag_is_a_development_version(repository: Repository, tmp_path: Path) -> None:
    """Its files name the commit, so that no two commits have files of one name."""
    repository.git("tag", "--delete", f"v{VERSION}")
    try:
        done = repository.release(tmp_path / "out")
    finally:
        repository.git("tag", f"v{VERSION}")
    assert done.returncode == 0, done.stderr
    commit = repository.git("rev-parse", "HEAD")[:7]
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert WHEEL not in names
    assert all(commit in name for name in names - {"SHA256SUMS", "mcagent.yaml"}), names


@pytest.mark.parametrize(("tag", "reason"), [("v9.9.9", "appVersion is"), ("v1", "appVersion is")])
def test_a_tag_that_the_tree_does_not_name_is_refused(
    repository: Repository, tmp_path: Path, tag: str, reason: str
) -> None:
    """A release whose chart or changelog is of another version is not made."""
    repository.git("tag", "--delete", f"v{VERSION}")
    repository.git("tag", tag)
    try:
        done = repository.release(tmp_path / "out")
    finally:
        repository.git("tag", "--delete", tag)
        repository.git("tag", f"v{VERSION}")
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.1.0", "0.1.0"),
        ("1.2.0rc1", "1.2.0-rc1"),
        ("0.1.dev2345+g947d879b", "0.1.0-dev.2345.g947d879b"),
        ("0.1.1.dev3+gabc.d20261126", "0.1.1-dev.3.gabc.d20261126"),
    ],
)
def test_versions_of_charts_are_semantic(version: str, tag: str) -> None:
    """The chart's version is a semantic one, and can be the tag of an image."""
    assert semantic(version) == tag


# --- with Helm --------------------------------------------------------------------------------------------


@pytest.fixture
def helm(request: pytest.FixtureRequest) -> Path:
    """Give Helm; tests are left out where there is none."""
    search = subprocess.run([ROOT / "tests/helm/find-helm"], capture_output=True, text=True, check=False)
    if search.returncode:
        leave_out(request, search.stderr.strip())
    return Path(search.stdout.strip())


@pytest.fixture
def registry(release: Path, tmp_path: Path) -> Iterator[str]:
    """Give HOST:PORT of a registry that has the content of the chart's OCI layout, and nothing else."""
    with tarfile.open(release / f"mcagent-chart-{VERSION}.oci.tar") as layout:
        layout.extractall(tmp_path / "layout", filter="data")
    (manifest,) = json.loads((tmp_path / "layout/index.json").read_text())["manifests"]
    blobs = {f"sha256:{file.name}": file.read_bytes() for file in (tmp_path / "layout/blobs/sha256").iterdir()}
    tags = {manifest["annotations"]["org.opencontainers.image.ref.name"]: manifest["digest"]}

    class Handler(BaseHTTPRequestHandler):
        """The part of the OCI distribution API that a pull needs."""

        def do_GET(self) -> None:
            _, _, name = self.path.rpartition("/")
            digest = tags.get(name, name)
            content = blobs.get(digest, b"{}" if self.path == "/v2/" else b"")
            if self.path.endswith("/tags/list"):
                content = json.dumps({"name": "mcagent", "tags": [*tags]}).encode()
            self.send_response(200 if content else 404)
            kind = manifest["mediaType"] if "/manifests/" in self.path else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815  (the name that http.server calls)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_helm_pulls_the_chart_from_its_oci_layout(
    helm: Path, registry: str, release: Path, tmp_path: Path
) -> None:
    """A registry with the layout's content serves the chart: Helm gets the same archive, by tag."""
    command = [str(helm), "pull", f"oci://{registry}/mcagent", "--version", VERSION, "--plain-http"]
    environment = os.environ | {"HELM_CONFIG_HOME": str(tmp_path), "HELM_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--destination", str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name = f"mcagent-{VERSION}.tgz"
    assert (tmp_path / name).read_bytes() == (release / name).read_bytes()


def test_helm_renders_the_packaged_chart_as_the_directory(
    helm: Path, repository: Repository, release: Path
) -> None:
    """The archive is complete: with all roles it makes the manifests that the tree makes."""

    def rendered(chart: Path) -> str:
        command = [str(helm), "template", "mcagent", str(chart), "--set", "leader.enabled=true"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert rendered(release / f"mcagent-{VERSION}.tgz") == rendered(repository.directory / CHART)
