"""Check `pre-ports`: no other program has the ports of tunnels and of the agent."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import fields

from mcagent.agent.config import Settings
from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch
from mcagent.model.errors import BackendError
from mcagent.model.keys.values import listen_address

CHECK = DoctorCheck(
    name="pre-ports",
    order=320,
    summary="before the installation: the ports of tunnels and of the agent are free",
    causes={
        "PortInUse": failed(
            "the agent, or the tunnels of Open vSwitch, cannot use a port of another program, such as a CNI with "
            "Geneve or VXLAN",
            "ss -lpn 'sport = :{port}' shows the program (none: a tunnel of the kernel, ip -d link); choose "
            "another port: {key} (tunnelPort alike in all clusters)",
        ),
    },
)
AGENT_PORT = 10360  # of the DaemonSet (deploy/agent.yaml)
Port = tuple[str, int, str]  # protocol, port, key of the configuration


def taken(node: ExaminedNode) -> tuple[Port, ...]:
    """Return the ports that are in use. Raises BackendError."""
    node.progress("ports")
    config = node.config
    ports: list[Port] = [("udp", node.tunnel_port, "tunnelPort")]
    ports += [
        ("udp", port, "wireGuard.devices" if number else "wireGuard.port")
        for number, port in enumerate(config.wireguard_ports)
    ]
    ports += agent_ports(node.settings)
    return tuple(port for port in ports if not _is_free(*port[:2]))


def agent_ports(settings: Settings) -> tuple[Port, ...]:
    """Return the ports of the agent's pages: those of a configuration, else that of the DaemonSet."""
    default = next(field.default for field in fields(Settings) if field.name == "listen")
    port = AGENT_PORT if settings.listen == default else listen_address(settings.listen)[1]
    ports = [("tcp", port, "listen")]
    if settings.health_listen != "0":
        ports.append(("tcp", listen_address(settings.health_listen)[1], "healthListen"))
    return tuple(ports)


def _is_free(protocol: str, port: int) -> bool:
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, protocol == "tcp")
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise BackendError("kernel", "bind", f"{protocol} {port}", error.strerror or str(error)) from None
    return True


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Report taken ports, unless mcagent has them."""
    if node.read(switch).datapath is not None:
        yield CHECK.passed("mcagent is installed on this Node: its ports are its own")
        return
    ports = node.read(taken)
    for protocol, port, key in ports:
        yield CHECK.finding("PortInUse", f"{protocol.upper()} {port} is in use", port=port, key=key)
    if not ports:
        yield CHECK.passed(f"UDP {node.tunnel_port} and the agent's ports are free")
