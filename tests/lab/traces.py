"""`mcagent trace` in a lab, as tests ask it."""

from __future__ import annotations

import json
from typing import Any

from devtools.lab.lab import Lab
from devtools.lab.running import environment
from devtools.nodes import netns


def trace(lab: Lab, node: str, source: object, target: str, *more: str) -> tuple[dict[str, Any], str]:
    """Return what the command says, as values and as what it says of each hop; its exit code says the same."""
    argv = ["trace", "--from", str(source), "--to", target, "--node", node, "-o", "json", *more]
    argv = lab.agent_command(*argv, "--agents", str(lab.agents_file()))
    told = netns.execute(lab.namespace(node), argv, check=False, env=environment())
    assert told.stdout, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    good = found["answered"] if found["live"] is None else found["live"]["answered"]
    assert told.returncode == (0 if good else 1)
    lines = (line for hop in (*found["hops"], *found["answer"]) for line in (f"{hop['node']}:", *hop["text"]))
    return found, "\n".join([*lines, json.dumps(found["live"])])


def nodes_of(found: dict[str, Any], way: str = "hops") -> list[str]:
    """Return the Nodes of the way there, or of the answer's."""
    return [hop["node"] for hop in found[way]]
