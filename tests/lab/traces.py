"""`mcagent trace` in a lab, as tests ask it."""

from __future__ import annotations

import json
from typing import Any

from devtools.lab.lab import Lab
from devtools.lab.running import environment
from devtools.nodes import netns


def trace(lab: Lab, node: str, source: object, target: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return what the command says, as values and as what it says of each hop; its exit code says the same."""
    argv = ["trace", "--from", str(source), "--to", target, "--node", node, "-o", "json", *arguments]
    argv = lab.agent_command(*argv, "--agents", str(lab.agents_file()))
    result = netns.execute(lab.namespace(node), argv, check=False, env=environment())
    assert result.stdout, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    good = document["answered"] if document["live"] is None else document["live"]["answered"]
    assert result.returncode == (0 if good else 1)
    lines = (
        line for hop in (*document["hops"], *document["answer"]) for line in (f"{hop['node']}:", *hop["text"])
    )
    return document, "\n".join([*lines, json.dumps(document["live"])])


def nodes_of(found: dict[str, Any], way: str = "hops") -> list[str]:
    """Return the Nodes of the way there, or of the answer's."""
    return [hop["node"] for hop in found[way]]
