"""The conformance suite of the Multi-Cluster Services API (kubernetes-sigs/mcs-api): program, images, results.

Owns what is known of the suite itself. Knows no clusters, and nothing of mcagent. The suite is a Ginkgo program,
and is run as it is: what its Pods need is made under the names that it asks for.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.k8s import images

VARIABLE = "MCS_CONFORMANCE"
HELLO = "docker.io/alpine/socat:1.7.4.4"  # serves; its arguments are socat's
REQUEST = "docker.io/nicolaka/netshoot:v0.15"  # asks; its commands are run by a shell
APPLETS = (
    "sh",
    "sleep",
    "grep",
    "tail",
    "head",
    "awk",
    "cat",
    "tr",
    "sed",
    "cut",
    "env",
    "printf",
    "ls",
)  # in scripts
# The Debian package of each command; busybox is the images' shell.
TOOLS = {
    "busybox": "busybox",
    "socat": "socat",
    "nslookup": "bind9-dnsutils",
    "nc.openbsd": "netcat-openbsd",
}
_COUNT = re.compile(r"^Will run (\d+) of \d+ specs")
_RULE = re.compile(r"^-{10,}$")
_END = re.compile(r"^(?P<mark>[•S]).*\[(?P<seconds>[\d.]+) seconds\]$")
_LABELS = re.compile(r"\s*\[[^\]]*\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one test. `message`: why it failed, in the suite's words."""

    name: str
    state: str
    labels: tuple[str, ...] = ()
    seconds: float = 0.0
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.state == "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One test of `count` has ended, as the suite says while it runs."""

    number: int
    count: int
    name: str
    passed: bool
    seconds: float


def find(given: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the suite's program, or its xz(1) archive. Raises LabError when it was not named, or is not there."""
    named = given or environment.get(VARIABLE)
    if not named:
        raise LabError(
            "the MCS API's conformance suite was not named: set MCS_CONFORMANCE to its program "
            "(https://github.com/kubernetes-sigs/mcs-api/tree/master/conformance)"
        )
    if not Path(named).is_file():
        raise LabError(
            f"MCS_CONFORMANCE names {named}, where no file is; it must be the suite's program or its xz archive"
        )
    return Path(named).resolve()


def unpack(program: Path, place: Path) -> Path:
    """Return a program that can be run: this one, or a copy of it in the directory `place`."""
    if program.suffix != ".xz" and os.access(program, os.X_OK):
        return program
    unpacked = place / program.name.removesuffix(".xz")
    reading = lzma.open if program.suffix == ".xz" else open
    with reading(program, "rb") as source, unpacked.open("wb") as target:
        shutil.copyfileobj(source, target)
    unpacked.chmod(0o755)
    return unpacked


def tools(path: str | None = None) -> dict[str, Path]:
    """Return this machine's programs for the suite's images. Raises LabError that names missing packages."""
    search = (path if path is not None else os.environ.get("PATH", os.defpath)) + ":/usr/sbin:/sbin"
    programs = {name: shutil.which(name, path=search) for name in TOOLS}
    missing = sorted(TOOLS[name] for name, where in programs.items() if where is None)
    if missing:
        raise LabError(f"the suite's images need Debian packages that are not installed: {', '.join(missing)}")
    return {name: Path(where).resolve() for name, where in programs.items() if where}


def write_images(place: Path, programs: Mapping[str, Path]) -> tuple[Path, ...]:
    """Write the archives of the suite's images, of these programs, and return where they are."""
    shell = _shell(place, programs["busybox"])
    socat = {"/usr/bin/socat": programs["socat"], **images.with_libraries(programs["socat"])}
    asking = {"/usr/bin/nslookup": programs["nslookup"], "/usr/bin/nc": programs["nc.openbsd"]}
    for program in (programs["nslookup"], programs["nc.openbsd"]):
        asking |= images.with_libraries(program)
    archives = place / "hello.tar", place / "request.tar"
    images.write_archive(archives[0], HELLO, {**shell, **socat}, ["/usr/bin/socat"])
    images.write_archive(archives[1], REQUEST, {**shell, **asking}, [])
    return archives


def _shell(place: Path, busybox: Path) -> dict[str, Path]:
    """Return /bin with a shell and what scripts use; links stand in the directory `place`."""
    files = {"/bin/busybox": busybox, **images.with_libraries(busybox)}
    for name in APPLETS:
        link = place / name
        link.symlink_to("busybox")
        files[f"/bin/{name}"] = link
    return files


def kubeconfig(clusters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one kubeconfig of several, each of which has one cluster, by the name of its context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": config["clusters"][0]["cluster"]} for name, config in clusters.items()
        ],
        "users": [{"name": name, "user": config["users"][0]["user"]} for name, config in clusters.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in clusters],
    }


def ended(lines: Iterable[str]) -> Iterator[Ended]:
    """Yield the tests as they end, of what the suite prints with --ginkgo.v and --ginkgo.no-color."""
    number = count = 0
    name, heading = "", False
    for line in lines:
        text = line.rstrip("\n")
        if match := _COUNT.match(text):
            count = int(match[1])
        elif _RULE.match(text):
            heading = True
        elif heading:
            heading = False
            if not text.startswith("["):
                name = " ".join(_LABELS.sub("", text).split())
        elif (match := _END.match(text)) and match["mark"] == "•":
            number += 1
            passed = "FAILED" not in text and "PANICKED" not in text and "TIMEDOUT" not in text
            yield Ended(number=number, count=count, name=name, passed=passed, seconds=float(match["seconds"]))


def results(report: str) -> tuple[Result, ...]:
    """Return what came of all tests, of the report that --ginkgo.json-report writes. Raises LabError."""
    try:
        return tuple(
            _result(spec)
            for suite in json.loads(report)
            for spec in suite.get("SpecReports") or ()
            if spec["LeafNodeType"] == "It" or spec["State"] not in ("passed", "skipped")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"the suite's JSON report is not one of Ginkgo: {error!r}") from None


def _result(one: Mapping[str, Any]) -> Result:
    texts = (*(one.get("ContainerHierarchyTexts") or ()), one["LeafNodeText"] or one["LeafNodeType"])
    labels = [label for labels in one.get("ContainerHierarchyLabels") or () for label in labels]
    return Result(
        name=" ".join(" ".join(texts).split()),
        state=one["State"],
        labels=(*labels, *(one.get("LeafNodeLabels") or ())),
        seconds=one.get("RunTime", 0) / 1e9,
        message=(one.get("Failure") or {}).get("Message", ""),
    )


def summary(found: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each test that ran, with why it failed; at the end how many passed."""
    ran = [outcome for outcome in found if outcome.state not in ("skipped", "pending")]
    for outcome in ran:
        yield f"{'passed' if outcome.passed else 'FAILED'}  {outcome.name} ({outcome.seconds:.0f} s)"
        if not outcome.passed:
            yield from (f"        {line}" for line in outcome.message.strip().splitlines()[:4])
    yield f"{sum(outcome.passed for outcome in ran)} of {len(ran)} passed" + (
        f", {len(found) - len(ran)} left out" if len(ran) < len(found) else ""
    )
