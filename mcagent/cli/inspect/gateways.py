"""`mcagent gateways`: asks agents which gateways there are, and which are live."""

from __future__ import annotations

import argparse
import re
from functools import partial

from mcagent.api.codec import to_json
from mcagent.api.status import DrainStatus, GatewayStatus, Probes, Status
from mcagent.cli.common.antrea import antrea_lines
from mcagent.cli.common.place import PLACE, add_place_flags, show_statuses
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.cli.common.tables import table

_EPILOG = f"""\
examples:
  mcagent gateways
  mcagent gateways node-1 --context east   # from a workstation, of this Node
  mcagent gateways --history
  mcagent gateways -o json | jq '.clusters[].gateways[] | select(.live | not)'

{PLACE}

DECIDED BY says whose word counts: BFD (measured), Node readiness, API, drain, or damping (it flaps).
SENT and RECEIVED count packets of the tunnel, BFD's own included. SHARE is its part of what was sent to all
gateways of that cluster in the last 10 to 20 seconds. RTT and LOSS are those of the last 60 probes through the
tunnel; "no answer": the other end (Antrea, an older version) answers none. "all of N bytes": the largest packets
do not pass, small ones do.
The exit code is 1 when a cluster has gateways and none is live, or an agent does not answer.
"""

_HEAD = (
    "CLUSTER", "GATEWAY", "ADDRESS", "STATE", "DECIDED BY", "SINCE", "FLAPS", "SENT", "RECEIVED", "SHARE", "RTT",
    "LOSS", "WHY",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer, and the configuration that says where the agent listens."""
    parser.description = (
        "Show which gateways Nodes have for each cluster: live or why not, since when, who decided."
    )
    parser.epilog = _EPILOG
    add_output_flag(parser)
    parser.add_argument("--history", action="store_true", help="the last ten transitions of each, too")
    add_place_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    return show_statuses(args, "mcagent gateways", partial(text, history=args.history), _members, _all_reached)


def _all_reached(status: Status) -> bool:
    """Tell whether each cluster with gateways has a live one."""
    return all(not group.gateways or any(gateway.live for gateway in group.gateways) for group in status.gateways)


def _members(status: Status) -> dict[str, object]:
    return {
        "node": status.node,
        "role": status.summary.role,
        "drain": to_json(status.drain),
        "clusters": [to_json(group) for group in status.gateways],
        "antrea": status.summary.antrea_clusters,
    }


def text(status: Status, *, history: bool = False) -> str:
    """Return the gateways for people. `history`: with the last transitions of each."""
    title = f"Node {status.node}, {status.summary.role or 'no role yet'}{_drain(status.drain)}"
    rows, transitions = [], []
    for group in status.gateways:
        cluster = "(this cluster)" if group.own else group.cluster
        for gateway in group.gateways:
            rows.append(_row(cluster, gateway))
            if history and gateway.transitions:
                transitions += ["", f"{cluster} {gateway.name}:"]
                transitions += [
                    f"  {event.at}  {'live' if event.live else 'NOT LIVE':<8}  {event.decided_by}: {event.why}"
                    for event in gateway.transitions
                ]
    if not rows:
        return f"{title}\n\nno gateways are known"
    notes = antrea_lines(status.summary)
    lines = [title, "", *table(_HEAD, rows), *(["", *notes] if notes else []), *transitions]
    return "\n".join(line.rstrip() for line in lines)


def _row(cluster: str, gateway: GatewayStatus) -> tuple[str, ...]:
    if gateway.gone:
        state = "gone"
    elif not gateway.live:
        state = "NOT LIVE"
    else:
        state = "live" if gateway.active else "standby"
    return (
        cluster,
        gateway.name,
        gateway.address or "-",
        state,
        gateway.decided_by,
        re.sub(r"\.\d+", "", gateway.since or "-"),  # whole seconds
        str(gateway.flaps),
        str(gateway.packets_sent) if gateway.tunnel else "-",
        str(gateway.packets_received) if gateway.tunnel else "-",
        _percent(gateway.share),
        *_probed(gateway.probes),
        gateway.why,
    )


def _probed(probes: Probes | None) -> tuple[str, str]:
    """Return round trip and loss; agents of an older version send neither."""
    if probes is None:
        return "-", "-"
    if not probes.answers:
        return "no answer", "-"
    loss = _percent(probes.loss_ratio)
    if probes.full_size_passes is False:
        loss += f", all of {probes.full_size_bytes} bytes"
    seconds = probes.round_trip_seconds
    return f"{1000 * seconds:.1f} ms" if seconds is not None else "-", loss


def _percent(ratio: float | None) -> str:
    return f"{100 * ratio:.0f} %" if ratio is not None else "-"


def _drain(drain: DrainStatus) -> str:
    if drain.refused:
        return f"; asked to drain, but {drain.refused}"
    if drain.phase in ("", "serving"):
        return ""
    unclean = "" if drain.clean else ", though packets still came"
    return f"; {drain.phase}{unclean} ({drain.why})"
