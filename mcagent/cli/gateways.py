"""`mcagent gateways`: asks the agent of this Node which gateways there are, and which are live."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.antrea import antrea_clusters, antrea_lines
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.setting_flags import add_setting_flags, load_settings
from mcagent.cli.common.tables import table

_EPILOG = """\
examples:
  mcagent gateways
  mcagent gateways --history
  mcagent gateways -o json | jq '.clusters[].gateways[] | select(.live | not)'

DECIDED BY says whose word counts: BFD (measured), Node readiness, API, drain, or damping (it flaps).
SENT and RECEIVED count packets of the tunnel, BFD's own included. SHARE is its part of what was sent to all
gateways of that cluster. RTT and LOSS are those of the last 60 probes through the tunnel; "no answer": the other
end (Antrea, an older version) answers none. "all of N bytes": the largest packets do not pass, small ones do.
The exit code is 1 when a cluster has gateways and none is live.
"""

_HEAD = (
    "CLUSTER", "GATEWAY", "ADDRESS", "STATE", "DECIDED BY", "SINCE", "FLAPS", "SENT", "RECEIVED", "SHARE", "RTT",
    "LOSS", "WHY",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer, and the configuration that says where the agent listens."""
    parser.description = (
        "Show which gateways this Node has for each cluster: live or why not, since when, who decided."
    )
    parser.epilog = _EPILOG
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the answer")
    parser.add_argument("--history", action="store_true", help="the last ten transitions of each, too")
    add_setting_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    status = ask_agent(load_settings(args, node_needed=False))
    found = {
        "node": status["node"],
        "role": status["summary"].get("role", ""),
        "drain": status["drain"],
        "clusters": status["gateways"],
        "antrea": antrea_clusters(status["summary"]),
    }
    told = antrea_lines(status["summary"])
    print(json.dumps(found, indent=2) if args.output == "json" else text(found, told, history=args.history))
    dead = [c for c in found["clusters"] if c["gateways"] and not any(g["live"] for g in c["gateways"])]
    return exit_codes.FAILED if dead else exit_codes.OK


def text(found: Mapping[str, Any], told: Sequence[str] = (), *, history: bool = False) -> str:
    """Return it for people. `told`: what else is to be known of clusters, a line each."""
    lines = [f"Node {found['node']}, {found['role'] or 'no role yet'}{_drain(found['drain'])}", ""]
    rows = []
    transitions = []
    for cluster in found["clusters"]:
        name = "(this cluster)" if cluster["own"] else cluster["cluster"]
        for gateway in cluster["gateways"]:
            rows.append(_row(name, gateway))
            if history and gateway["transitions"]:
                transitions += ["", f"{name} {gateway['name']}:"]
                transitions += [
                    f"  {t['at']}  {'live' if t['live'] else 'NOT LIVE':<8}  {t['decidedBy']}: {t['why']}"
                    for t in gateway["transitions"]
                ]
    if not rows:
        return lines[0] + "\n\nno gateways are known"
    others = ["", *told] if told else []
    return "\n".join(line.rstrip() for line in [*lines, *table(_HEAD, rows), *others, *transitions])


def _row(cluster: str, gateway: Mapping[str, Any]) -> tuple[str, ...]:
    if gateway["gone"]:
        state = "gone"
    elif not gateway["live"]:
        state = "NOT LIVE"
    else:
        state = "live" if gateway["active"] else "standby"
    share = gateway["share"]
    return (
        cluster,
        gateway["name"],
        gateway["address"] or "-",
        state,
        gateway["decidedBy"],
        gateway["since"] or "-",
        str(gateway["flaps"]),
        str(gateway["packetsSent"]) if gateway["tunnel"] else "-",
        str(gateway["packetsReceived"]) if gateway["tunnel"] else "-",
        f"{100 * share:.0f} %" if share is not None else "-",
        *_probed(gateway.get("probes")),
        gateway["why"],
    )


def _probed(probes: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return round trip and loss; an agent of an older version tells neither."""
    if probes is None:
        return "-", "-"
    if not probes["answers"]:
        return "no answer", "-"
    seconds, loss = probes["roundTripSeconds"], probes["lossRatio"]
    text = f"{100 * loss:.0f} %" if loss is not None else "-"
    if probes["fullSizePasses"] is False:
        text += f", all of {probes['fullSizeBytes']} bytes"
    return f"{1000 * seconds:.1f} ms" if seconds is not None else "-", text


def _drain(drain: Mapping[str, Any]) -> str:
    if drain["refused"]:
        return f"; asked to drain, but {drain['refused']}"
    if drain["phase"] == "serving":
        return ""
    unclean = "" if drain["clean"] else ", though packets still came"
    return f"; {drain['phase']}{unclean} ({drain['why']})"
