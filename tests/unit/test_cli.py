"""The command line: what it finds, what it imports, how it ends."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcagent.agent.config import SCHEMA as AGENT
from mcagent.cli.main import COMMANDS, GROUPS, main
from mcagent.config.schema import Schema
from mcagent.controller.config import SCHEMA as CONTROLLER

HEAVY = ("argcomplete", "kubernetes", "ovs", "pyroute2", "prometheus_client", "yaml")


def help_of(*names: str) -> list[tuple[int, set[str], str]]:
    """Ask for help in a fresh interpreter; return of each command exit code, modules loaded by then, and text."""
    code = (
        "import contextlib, io, json, sys\n"
        "from mcagent.cli.main import main\n"
        "found = []\n"
        "for name in sys.argv[1:]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as shown:\n"
        "        try: code = main([*filter(None, [name]), '--help'])\n"
        "        except SystemExit as end: code = end.code\n"
        f"    found.append((code, [m for m in {HEAVY!r} if m in sys.modules], shown.getvalue()))\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    return [(code, set(heavy), text) for code, heavy, text in json.loads(done.stdout)]


def test_help_of_uninstall_has_the_order_of_its_steps() -> None:
    """As `removal.uninstall` does them: the ClusterSet is left first, and names go after their Services."""
    ((_, _, text),) = help_of("uninstall")
    steps = (
        "the ClusterSet is left",
        "cleanup there",
        "then webhooks",
        "names under clusterset.local",
        "CRDs last",
    )
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_help_imports_nothing_heavy() -> None:
    """`mcagent --help` lists the commands without loading a client library."""
    ((code, heavy, text),) = help_of("")
    assert code == 0
    assert heavy == set()
    assert "cleanup" in text


def test_help_of_each_command_gives_examples_and_exit_codes() -> None:
    """Every command explains itself, and loads no client library for it."""
    for name, (code, heavy, text) in zip(COMMANDS, help_of(*COMMANDS), strict=True):
        assert code == 0, text
        assert not heavy & {"kubernetes", "ovs", "pyroute2"}, name
        assert "examples:" in text
        assert "exit codes:" in text
        assert len(text.splitlines()) < 60, f"{name}: a screen or two, not more"


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists what there is."""
    with pytest.raises(SystemExit) as end:
        main(["reticulate"])
    assert end.value.code == 2
    assert "config" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["statsu", "-o", "json"])
    assert end.value.code == 2
    assert 'unknown command "statsu" (did you mean "status"?)' in capsys.readouterr().err


def test_examples_use_the_namespaces_of_the_pages() -> None:
    """The leader's controller looks in antrea-multicluster: elsewhere a ClusterSet has no controller."""
    used = {
        namespace
        for file in (Path(__file__).parents[2] / "mcagent").rglob("*.py")
        for namespace in re.findall(r"^  mcagent .*? -n ([a-z-]+)", file.read_text(), re.MULTILINE)
    }
    assert "antrea-multicluster" in used
    assert used <= {"antrea-multicluster", "kube-system", "shop"}


def test_help_is_printed_as_by_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, with `help`, and with `help COMMAND`."""
    assert main([]) == main(["help"]) == main(["--help"]) == 0
    general = capsys.readouterr().out
    assert general.count("usage: mcagent [--help]") == 3
    for line in (["help", "get"], ["get", "--help"]):
        with pytest.raises(SystemExit) as end:
            main(line)
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith("usage: mcagent get [-h]")


def test_config_check_tells_all_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad file ends with the code for bad input; every finding is printed."""
    file = tmp_path / "agent.yaml"
    file.write_text("mtu: 1\nnone: 1\n")
    assert main(["config", "check", str(file)]) == 2
    output = capsys.readouterr().err
    assert "mtu: must be" in output
    assert "none: unknown key" in output
    file.write_text("mtu: 1400\n")
    assert main(["config", "check", str(file)]) == 0


def test_config_check_names_what_it_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file by its name; without any it says that, instead of that all is well."""
    monkeypatch.delenv("MCAGENT_CONFIG", raising=False)
    file = tmp_path / "agent.yaml"
    file.write_text("mtu: 1400\n")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no errors\n"
    if not Path("/etc/mcagent/agent.yaml").exists():
        assert main(["config", "check"]) == 0
        assert capsys.readouterr().out == "no file, only defaults and the environment: no errors\n"


def test_config_show_prints_what_is_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File and flags are put together, and the result can be read by a program."""
    file = tmp_path / "agent.yaml"
    file.write_text("mtu: 1400\npodCIDRs: [10.0.0.0/16]\n")
    assert main(["config", "show", str(file), "--node-name", "n1", "--enable-gateway=false", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mtu"] == 1400
    assert shown["podCIDRs"] == ["10.0.0.0/16"]
    assert shown["nodeName"] == "n1"
    assert shown["enableGateway"] is False


CONFIGURED = ("status", "page", "gateways", "doctor", "plan", "drain", "undrain", "wireguard")


@pytest.mark.parametrize("name", CONFIGURED)
def test_help_of_commands_lists_their_own_flags_only(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that only reads the configuration has --config, and no flag for each key."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert "--config FILE" in text
    assert "--help-config" not in text
    assert "--bridge" not in text
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize("name", CONFIGURED)
@pytest.mark.parametrize("flag", [("--ovsdb", "unix:/run/x"), ("--ovsdb=unix:/run/x",), ("--ovsdb",)])
def test_a_removed_flag_is_refused_with_its_replacement(
    name: str, flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the key for --config and the environment variable."""
    with pytest.raises(SystemExit) as end:
        main([name, *flag])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "--ovsdb is no flag of this command" in message
    assert "set ovsdb in the file of --config, or MCAGENT_OVSDB in the environment" in message


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        (("agent",), AGENT),
        (("cleanup",), AGENT),
        (("config", "show"), AGENT),
        (("controller", "leader"), CONTROLLER),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_help_config_lists_the_flag_of_each_key(
    words: tuple[str, ...], schema: Schema, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` leaves these flags out and names --help-config; `--help-config` lists each of them."""
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    brief = capsys.readouterr().out
    assert "--help-config" in brief
    with pytest.raises(SystemExit) as end:
        main([*words, "--help-config"])
    assert end.value.code == 0
    listed = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert listed == {key.flag for key in schema.keys}
    assert not listed & set(re.findall(r"^  (--[a-z-]+)", brief, re.MULTILINE))


def test_commands_without_flags_of_keys_still_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mcagent status` asks the agent where the variable says."""
    monkeypatch.setenv("MCAGENT_LISTEN", "127.0.0.1:9")
    assert main(["status", "--config", str(tmp_path / "none.yaml")]) == 2
    file = tmp_path / "agent.yaml"
    file.write_text("listen: 127.0.0.1:8\n")
    capsys.readouterr()
    assert main(["status", "--config", str(file)]) == 1
    assert "no agent answers at 127.0.0.1:9" in capsys.readouterr().err


def test_a_variable_of_other_tools_stops_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the agent itself refuses a variable that it does not know; a command says that it ignores it."""
    monkeypatch.setenv("MCAGENT_K8S_PROGRAMS", "/opt/programs")
    monkeypatch.setenv("MCAGENT_LISTEN", "127.0.0.1:9")
    file = tmp_path / "agent.yaml"
    file.write_text("nodeName: n1\n")
    assert main(["status", "--config", str(file)]) == 1
    err = capsys.readouterr().err
    assert "environment MCAGENT_K8S_PROGRAMS is ignored: unknown key" in err
    assert "no agent answers at 127.0.0.1:9: Connection refused" in err
    assert main(["config", "check", str(file)]) == 2


def test_an_error_of_a_file_names_the_file_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As cat and kubectl do: no number of an error, no text of an exception."""
    missing = str(tmp_path / "join.yaml")
    assert main(["clusterset", "join", "-f", missing]) == 1
    assert capsys.readouterr().err == f"mcagent clusterset: {missing}: No such file or directory\n"
    assert main(["config", "check", missing]) == 2
    refused = f"mcagent config: configuration {missing}: cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == refused


def test_signs_that_the_terminal_lacks_are_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale such as en_US.ISO-8859-1: the rest is readable, and ✓ is another text than ✗."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    sys.stdout.flush()
    assert b"\\u2713 fine" in written.getvalue()


def test_an_error_does_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What it quotes may be from an object of another cluster, or its own command line."""
    assert main(["get", "gate\x1b[2Jway\x07"]) == 2
    err = capsys.readouterr().err
    assert 'there is no kind "gate\\x1b[2jway\\x07"' in err.lower()


def test_a_command_names_itself_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the error is about its input."""
    assert main(["benchmark"]) == 2
    assert capsys.readouterr().err == "mcagent benchmark: --from and --to are needed: contexts of the kubeconfig\n"
    assert main(["mc", "jion"]) == 2
    assert capsys.readouterr().err.startswith("mcagent mc: jion: no such command of antctl mc; known are ")


def test_help_groups_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is in one group, with a sentence that begins with a verb: `Show …`, `Print …`."""
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = [re.findall(r"^  ([a-z]+) +[A-Z]", block, re.MULTILINE) for block in shown.split("\n\n")]
    assert [names for names in listed if names] == [list(group) for group in GROUPS.values()]
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for title, group in GROUPS.items():
        assert f"\n{title}:\n" in shown
        for name, text in group.items():
            assert not text.endswith(".")
            assert text.split()[0] not in {"The", "A"}, name
            assert len(text) <= 80


@pytest.mark.parametrize(
    "words",
    [("drain", "n1"), ("undrain", "n1"), ("doctor", "--all"), ("plan", "--node-name", "n1", "--offline")],
    ids=lambda words: words[0],
)
def test_commands_of_the_api_server_use_kubeconfig_and_context(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context that the kubeconfig does not have is an error that names it."""
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "here", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "x"}}]
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "here", "users": users}
    file.write_text(json.dumps(kubeconfig | {"clusters": [cluster], "contexts": [context]}), encoding="utf-8")
    assert main([*words, "--kubeconfig", str(file), "--context", "elsewhere"]) == 1
    assert "elsewhere" in capsys.readouterr().err
