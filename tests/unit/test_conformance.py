"""Running the MCS API's conformance suite: what is read of what it prints and reports, and what it is given."""

from __future__ import annotations

import json
import lzma
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.k8s import mcs_suite
from devtools.k8s.__main__ import main
from devtools.k8s.mcs_suite import Ended, Result

PRINTED = """\
Running Suite: Conformance Suite - /tmp
Random Seed: 1

Will run 3 of 27 specs
------------------------------
[BeforeSuite] 
/mcs/conformance/conformance_suite.go:92
[BeforeSuite] PASSED [0.100 seconds]
------------------------------
 A service  should be there [Required]
/mcs/conformance/service.go:37
  STEP: Looking @ 11/24/26 02:26:35.44
• [1.500 seconds]
------------------------------
 Another one [DNS, Optional]
/mcs/conformance/dns.go:61
  [FAILED] in [It] - /mcs/conformance/dns.go:61 @ 11/24/26 02:26:35.44
• [FAILED] [20.250 seconds]
 Another one [It] [DNS, Optional]
------------------------------
S [SKIPPED] [0.000 seconds]
------------------------------
[ReportAfterSuite] MCS conformance report
/mcs/conformance/report.go:154
[ReportAfterSuite] PASSED [0.002 seconds]
"""  # noqa: W291  (as Ginkgo writes it)


def spec(text: str, state: str, **fields: Any) -> dict[str, Any]:
    """Return a test as Ginkgo reports it."""
    return {
        "ContainerHierarchyTexts": ["", "A service"],
        "ContainerHierarchyLabels": [["DNS"], []],
        "LeafNodeType": "It",
        "LeafNodeText": text,
        "LeafNodeLabels": ["Optional"],
        "State": state,
        "RunTime": 1_500_000_000,
        **fields,
    }


def test_the_suites_output_tells_of_each_test_as_it_ends() -> None:
    """With its number, its name without labels, and whether it passed; nodes around the tests are none."""
    assert list(mcs_suite.ended(PRINTED.splitlines(keepends=True))) == [
        Ended(number=1, count=3, name="A service should be there", passed=True, seconds=1.5),
        Ended(number=2, count=3, name="Another one", passed=False, seconds=20.25),
    ]


def test_results_are_read_of_ginkgos_report() -> None:
    """Names are the containers' and the test's; a set-up that failed is a result, too."""
    report = [
        {
            "SpecReports": [
                {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
                {"LeafNodeType": "AfterSuite", "LeafNodeText": "", "State": "failed"},
                spec("is there", "passed"),
                spec("answers", "failed", Failure={"Message": "Timed out\nit did not"}),
            ]
        }
    ]
    results = mcs_suite.results(json.dumps(report))
    assert [result.name for result in results] == ["AfterSuite", "A service is there", "A service answers"]
    assert [result.passed for result in results] == [False, True, False]
    assert results[1] == Result(
        name="A service is there", state="passed", labels=("DNS", "Optional"), seconds=1.5, message=""
    )
    assert results[2].message == "Timed out\nit did not"


@pytest.mark.parametrize("text", ["", "{}x", '{"a": 1}', '[{"SpecReports": [{}]}]'])
def test_a_report_that_is_none_is_refused(text: str) -> None:
    """With an error that says so."""
    with pytest.raises(LabError, match="not one of Ginkgo"):
        mcs_suite.results(text)


def test_the_summary_has_a_line_for_each_test_that_ran() -> None:
    """And says of one that failed why."""
    results = [
        Result(name="one", state="passed", seconds=2),
        Result(name="two", state="failed", seconds=20, message="\nnot so\n"),
        Result(name="three", state="skipped"),
    ]
    assert list(mcs_suite.summary(results)) == [
        "passed  one (2 s)",
        "FAILED  two (20 s)",
        "        not so",
        "1 of 2 passed, 1 left out",
    ]


def test_the_suite_is_what_the_variable_names(tmp_path: Path) -> None:
    """An argument comes first; what is not there is an error that names it."""
    program = tmp_path / "conformance.test"
    program.touch()
    environment = {mcs_suite.VARIABLE: str(program)}
    assert mcs_suite.find(None, environment) == program
    assert mcs_suite.find(str(program), {}) == program
    with pytest.raises(LabError, match="was not named: set MCS_CONFORMANCE"):
        mcs_suite.find(None, {})
    with pytest.raises(LabError, match="elsewhere, where no file is"):
        mcs_suite.find("elsewhere", environment)


def test_an_archive_is_unpacked_and_a_program_is_used_as_it_is(tmp_path: Path) -> None:
    """What cannot be run where it is becomes a copy that can."""
    archive = tmp_path / "conformance.test.xz"
    archive.write_bytes(lzma.compress(b"#!/bin/sh\n"))
    place = tmp_path / "place"
    place.mkdir()
    program = mcs_suite.unpack(archive, place)
    assert program == place / "conformance.test"
    assert program.read_bytes() == b"#!/bin/sh\n"
    assert os.access(program, os.X_OK)
    assert mcs_suite.unpack(program, tmp_path) == program


def test_kubeconfigs_are_joined_by_context() -> None:
    """Each context keeps its own server and credentials, whatever they were called."""
    kubeconfigs = {
        name: {
            "clusters": [{"name": "lab", "cluster": {"server": f"https://{name}"}}],
            "users": [{"name": "lab", "user": {"token": name}}],
        }
        for name in ("c1", "c2")
    }
    kubeconfig = mcs_suite.kubeconfig(kubeconfigs)
    assert kubeconfig["contexts"] == [{"name": n, "context": {"cluster": n, "user": n}} for n in ("c1", "c2")]
    assert [cluster["cluster"]["server"] for cluster in kubeconfig["clusters"]] == ["https://c1", "https://c2"]
    assert [cluster["user"]["token"] for cluster in kubeconfig["users"]] == ["c1", "c2"]


def test_the_suites_images_are_made_of_this_machines_programs(tmp_path: Path) -> None:
    """The image that serves runs socat; both have a shell."""
    program = Path("/bin/ls").resolve()
    archives = mcs_suite.write_images(tmp_path, dict.fromkeys(mcs_suite.TOOLS, program))
    for archive, name, entrypoint in zip(
        archives, (mcs_suite.HELLO, mcs_suite.REQUEST), (["/usr/bin/socat"], []), strict=True
    ):
        with tarfile.open(archive) as image:
            (manifest,) = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
            config = json.load(image.extractfile("config.json"))  # type: ignore[arg-type]
            with tarfile.open(fileobj=image.extractfile("layer.tar")) as layer:
                shell = layer.getmember("bin/sh")
                assert shell.issym()
                assert shell.linkname == "busybox"
        assert manifest["RepoTags"] == [name]
        assert config["config"]["Entrypoint"] == entrypoint


def test_tools_that_are_missing_are_named_by_their_packages(tmp_path: Path) -> None:
    """All of them at once."""
    with pytest.raises(LabError, match="netcat-openbsd"):
        mcs_suite.tools(path=str(tmp_path))


def test_without_a_suite_it_is_left_out_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --optional that is no error; without it is one."""
    monkeypatch.delenv(mcs_suite.VARIABLE, raising=False)
    assert main(["conformance", "--optional"]) == 0
    assert "LEFT OUT: conformance: the MCS API's conformance suite was not named" in capsys.readouterr().out
    assert main(["conformance"]) == 1
    assert "was not named" in capsys.readouterr().err
