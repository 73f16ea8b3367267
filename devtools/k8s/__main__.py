"""`devtools/mck8s ACTION`: clusters of real Kubernetes on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from devtools.errors import LabError
from devtools.k8s import conformance, external, mcs_suite
from devtools.k8s.demo import MCAGENT, Demo, kubeconfig_of_all
from devtools.k8s.lab import K8sLab, Plan
from devtools.k8s.node import K8sCni, ProxyMode
from devtools.k8s.programs import mcagent_images, require
from devtools.lab.progress import Progress

EXAMPLES = """examples:
  devtools/mck8s demo                                        # up, install, join, ask, lose a gateway, down
  devtools/mck8s setup                                       # Debian packages, programs, image: once (15 minutes)
  devtools/mck8s up --clusters 2 --workers 1 --cni flannel
  devtools/mck8s up --cni flannel,bridge --proxy-mode iptables,nftables   # one of each for the n-th cluster
  devtools/mck8s demo --same-cidrs                           # clusters with identical CIDRs
  devtools/mck8s kubectl east get nodes -o wide
  devtools/mck8s exec east-w1 -- ip route
  devtools/mck8s shell                                       # mcagent, kubectl, contexts: the README's commands
  devtools/mck8s conformance --suite mcs-api/conformance.test             # up, join, the MCS API's suite, down
  devtools/mck8s down
"""


def main(argv: list[str] | None = None) -> int:
    """Run one action. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="devtools/mck8s",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="make clusters")
    _add_plan(up, cnis="flannel", modes="iptables")
    demo = actions.add_parser("demo", help="make clusters, install mcagent, show what it does, take all away")
    _add_plan(demo, cnis="flannel,bridge", modes="iptables,nftables")
    demo.add_argument("--keep", action="store_true", help="leave the clusters up")
    _add_conformance(
        actions.add_parser("conformance", help="the MCS API's conformance suite on two such clusters")
    )
    actions.add_parser("down", help="take everything away")
    actions.add_parser("status", help="Nodes and Pods")
    kubectl = actions.add_parser("kubectl", help="kubectl on a cluster")
    kubectl.add_argument("cluster")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    execute = actions.add_parser("exec", help="a command on a Node")
    execute.add_argument("node")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    shell = actions.add_parser(
        "shell", help="a shell beside the clusters, with mcagent, kubectl and their contexts"
    )
    shell.add_argument("command", nargs=argparse.REMAINDER, help="in place of a shell: -- helm list")
    args = parser.parse_args(argv)
    say = Progress()
    try:
        if args.action == "up":
            args.image = args.image or _present_images(say)
            lab = K8sLab(_plan(args), say)
            lab.up()
            lab.keep()
            return 0
        if args.action == "demo":
            args.image = args.image or mcagent_images()[:1]
            return _demo(K8sLab(_plan(args), say), say, keep=args.keep)
        if args.action == "conformance":
            return _conformance(args, say)
        lab = K8sLab.load(say)
        if args.action == "down":
            lab.down()
        elif args.action == "kubectl":
            argv = lab.kubectl_command(lab.topology.cluster(args.cluster), *args.arguments)
            os.execvp(argv[0], argv)  # noqa: S606  (no shell is wanted)
        elif args.action == "shell":
            command = _words(args.command) or [os.environ.get("SHELL", "/bin/bash")]
            path = os.pathsep.join((str(MCAGENT.parent), str(require()["kubectl"].parent), os.environ["PATH"]))
            os.environ |= {"KUBECONFIG": str(kubeconfig_of_all(lab)), "PATH": path}
            argv = [*lab.beside(lab.topology.clusters[0]), *command]
            os.execvp(argv[0], argv)  # noqa: S606  (no shell is wanted)
        elif args.action == "exec":
            argv = lab.machine(lab.topology.node(args.node)[1]).command(_words(args.command))
            os.execvp(argv[0], argv)  # noqa: S606  (no shell is wanted)
        else:
            for cluster in lab.topology.clusters:
                sys.stdout.write(lab.kubectl(cluster, "get", "nodes,pods", "-A", "-o", "wide"))
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _words(command: list[str]) -> list[str]:
    return command[1:] if command[:1] == ["--"] else command


def _present_images(say: Progress) -> list[str]:
    """Return the archives of mcagent's images; without them the clusters have none, and it is said."""
    try:
        return list(mcagent_images())
    except LabError as error:
        say.line(say.paint(f"the Nodes have no image of mcagent: {error}", "33"))
        return []


def _add_plan(parser: argparse.ArgumentParser, *, cnis: str, modes: str) -> None:
    parser.add_argument("--clusters", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=1, help="Nodes beside the control plane's [%(default)s]")
    parser.add_argument(
        "--cni",
        default=cnis,
        type=lambda text: tuple(text.split(",")),
        help=f"{', '.join(K8sCni)}, or one in ${external.VARIABLE}; with commas for each cluster [%(default)s]",
    )
    parser.add_argument(
        "--proxy-mode",
        default=modes,
        type=lambda text: tuple(map(ProxyMode, text.split(","))),
        help="iptables or nftables; with commas for each cluster [%(default)s]",
    )
    parser.add_argument("--same-cidrs", action="store_true", help="identical Service and Pod CIDRs everywhere")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="archive of an image for all Nodes"
    )


def _add_conformance(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser, cnis="flannel,bridge", modes="iptables,nftables")
    parser.add_argument(
        "--suite", metavar="FILE", help=f"the suite's program or its xz archive [${mcs_suite.VARIABLE}]"
    )
    parser.add_argument(
        "--reports", type=Path, default=conformance.REPORTS, metavar="DIR", help="where reports go [%(default)s]"
    )
    parser.add_argument("--keep", action="store_true", help="leave the clusters up")
    parser.add_argument("--again", action="store_true", help="on the clusters that --keep left up")
    parser.add_argument(
        "--optional", action="store_true", help="leave it out, and say so, where something is missing"
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="for the suite: -- --ginkgo.focus=headless"
    )


def _conformance(args: argparse.Namespace, say: Progress) -> int:
    """Run the suite, or say why it is left out."""
    try:
        program = mcs_suite.find(args.suite)
        if not args.again:
            conformance.check()
    except LabError as error:
        if not args.optional:
            raise
        say.line(say.paint(f"LEFT OUT: conformance: {error}", "33"))
        return 0
    selection = conformance.Wanted(
        program=program, reports=args.reports.absolute(), suite=tuple(args.arguments), keep=args.keep
    )
    return conformance.again(selection, say) if args.again else conformance.run(_plan(args), selection, say)


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        clusters=args.clusters,
        workers=args.workers,
        cnis=args.cni,
        proxy_modes=args.proxy_mode,
        archives=tuple(map(os.path.abspath, args.image)),
        same_cidrs=args.same_cidrs,
    )


def _demo(lab: K8sLab, say: Progress, *, keep: bool) -> int:
    lab.require_free()  # before the block that takes down what this call made
    ok = True
    try:
        lab.up()
        for claim in Demo(lab, say).tell():
            ok &= claim.ok
            say.line(f"    {say.paint('yes', '32') if claim.ok else say.paint('NO', '31')}  {claim.text}")
    finally:
        if keep:
            lab.keep()
        else:
            lab.down()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
