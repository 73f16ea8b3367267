"""`mcagent deploy`: what a cluster needs of this version, printed or applied."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.shared_flags import add_list_flag, add_namespace_flag, add_output_flag, add_seconds_flag
from mcagent.model.errors import InputError

if TYPE_CHECKING:
    from mcagent.controller.admin.cluster import Cluster
    from mcagent.controller.admin.manifests import Part, Site

_EPILOG = """\
examples:
  mcagent deploy --clusterid east > east.yaml            look first: a member's agents, controller, Open vSwitch
  mcagent deploy --clusterid north --role all --apply    the cluster that leads, and is a member itself
  mcagent deploy --clusterid east --registry registry.example.com/net --apply
  mcagent deploy --clusterid east --set 'agent.config.podCIDRs=[10.2.0.0/16]' --apply

Parts and configuration: docs/deploy.md. Kubernetes 1.30 or newer is required. Applied again, objects change in
place, and keep the configuration given before (--clusterid, --set). `mcagent uninstall` removes them.
"""

# Keys with a port that is also in the manifests, and the ports with which these are right.
_CONTROLLER_PORTS = {
    "health.healthProbeBindAddress": ("8080",),
    "metrics.bindAddress": ("8443", "0"),
    "webhook.port": ("9443",),
}
_PORTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "agent": {"listen": ("10360",), "healthListen": ("10361",)},
    "member": _CONTROLLER_PORTS,
    "leader": _CONTROLLER_PORTS,
}
# The addresses of health that the probes of the manifests reach: 127.0.0.1 on the Node, and that of the Pod.
_PROBED: Mapping[str, tuple[str, ...]] = {
    "healthListen": ("", "0.0.0.0", "[::]", "127.0.0.1", "localhost"),
    "health.healthProbeBindAddress": ("", "0.0.0.0", "[::]"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to install, and where."""
    parser.description = "Print the manifests of this version for a cluster, or apply them."
    parser.usage = "%(prog)s [flags]"
    parser.epilog = _EPILOG
    add_place_flags(parser)
    parser.add_argument("--clusterid", default="", metavar="ID", help="of this cluster: agent.config.clusterID")
    parser.add_argument(
        "--registry", default="", metavar="PREFIX", help="of the images, with its path: registry.example.com/net"
    )
    parser.add_argument("--image", default="", metavar="IMAGE", help="of agent and controllers [mcagent:VERSION]")
    parser.add_argument(
        "--openvswitch-image",
        default="",
        metavar="IMAGE",
        help="of Open vSwitch [that of --image, with -openvswitch after its name]",
    )
    parser.add_argument(
        "--openvswitch", choices=["auto", "always", "never"], default="auto", help="docs/deploy.md [%(default)s]"
    )
    for flag, meaning in (("--with", "this part, too"), ("--without", "all but this part")):
        add_list_flag(parser, flag, "PART", f"{meaning}; may be repeated")
    parser.add_argument(
        "--with-policies",
        action="append_const",
        dest="with",
        const="policies",
        help="also the CRDs and default Tiers of Antrea's policies, where Antrea has not installed them",
    )
    add_list_flag(
        parser,
        "--set",
        "ROLE.config.KEY=VALUE",
        "a key of docs/configuration.md, as in the chart's values; VALUE is YAML; may be repeated",
    )
    add_output_flag(parser, ("yaml", "json"))
    parser.add_argument("--apply", action="store_true", help="apply the objects instead of printing them")
    parser.add_argument(
        "--reset-config", action="store_true", help="drop the configuration that an earlier installation was given"
    )
    parser.add_argument("--dry-run", action="store_true", help="have the API server check them, and store nothing")
    parser.add_argument("--force", action="store_true", help="take over fields and CRDs that another program set")
    add_seconds_flag(parser, "--timeout", 300.0, "wait so long for all Pods")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for Pods")
    add_cluster_flags(parser)


def add_place_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the role of a cluster, and where its parts are."""
    parser.add_argument("--role", choices=["member", "leader", "all"], default="member", help="[%(default)s]")
    add_namespace_flag(parser, "of agents and member", "kube-system")
    parser.add_argument(
        "--leader-namespace",
        default="antrea-multicluster",
        metavar="NAMESPACE",
        help="of the leader: the Common Area [%(default)s]",
    )


def run(args: argparse.Namespace) -> int:
    """Print, or apply."""
    from mcagent.controller.admin import deployment, manifests

    parts = _parts(args)
    site = _site(args, parts)
    cluster = open_cluster(args) if args.apply or args.dry_run else None
    if cluster is not None and not args.reset_config:
        site = _with_given_config(cluster, parts, site)
    _check(site, parts)
    if cluster is not None:
        _require_cluster_id(site, parts)
    objects = manifests.objects(parts, site)
    if cluster is None:
        print(_text(objects, args.output), end="")
    else:
        timeout = 0.0 if args.no_wait else args.timeout
        withdrawn = _withdrawn(site, parts)
        deployment.deploy(cluster, objects, withdrawn, force=args.force, dry_run=args.dry_run, timeout=timeout)
    return exit_codes.OK


def _withdrawn(site: Site, parts: set[Part]) -> list[dict[str, Any]]:
    """Return the rights on policies that a member without consent to policies of the leader must not keep."""
    from mcagent.controller.admin import manifests
    from mcagent.controller.admin.manifests import Part

    keeps = Part.MEMBER_POLICIES in parts or Part.MEMBER not in parts or manifests.accepted_policies(site)
    return [] if keeps else manifests.objects({Part.MEMBER_POLICIES}, site)


def _with_given_config(cluster: Cluster, parts: set[Part], site: Site) -> Site:
    """Return the site with the configuration of the last installation, overridden by what is given now."""
    from mcagent.controller.admin import deployment, manifests

    config = dict(site.config)
    for part, earlier in deployment.given_config(cluster, parts, site).items():
        config[part] = manifests.merged(earlier, config.get(part, {}))
        if keys := ", ".join(sorted(earlier)):
            cluster.report(f"configuration of {part} kept, unless given again: {keys} (--reset-config drops it)")
    return replace(site, config=config)


def _require_cluster_id(site: Site, parts: set[Part]) -> None:
    """Raise InputError if agents would be installed without the cluster's ID."""
    from mcagent.controller.admin.manifests import Part

    if Part.AGENT in parts and not site.config[Part.AGENT].get("clusterID"):
        raise InputError("--clusterid", "", "is required: the ID of this cluster in the ClusterSet, such as east")


def _parts(args: argparse.Namespace) -> set[Part]:
    """Return the parts to deploy. Raises InputError."""
    from mcagent.controller.admin.manifests import PARTS, InstalledRole, Part

    parts_by_name = {str(part): part for part in Part}
    for flag, names in (("--with", vars(args)["with"]), ("--without", args.without)):
        for name in names:
            if name not in parts_by_name:
                raise InputError(flag, "", f'"{name}" is no part; parts are {", ".join(parts_by_name)}')
    added, removed = ({parts_by_name[name] for name in names} for names in (vars(args)["with"], args.without))
    parts = set(PARTS[InstalledRole(args.role)] | added) - removed
    return parts - {Part.OPENVSWITCH} if args.openvswitch == "never" else parts


def _site(args: argparse.Namespace, parts: set[Part]) -> Site:
    """Return what the flags say of the cluster. Raises InputError."""
    import yaml

    from mcagent.config.reader import load_yaml, yaml_fault
    from mcagent.controller.admin.fields import value_at
    from mcagent.controller.admin.manifests import CONFIGURED, Part, Site

    config: dict[Part, dict[str, Any]] = {part: {} for part in CONFIGURED}
    for text in args.set:
        path, equals, value = text.partition("=")
        role, _, key = path.partition(".config.")
        if role not in list(map(str, CONFIGURED)) or not key or not equals:
            raise InputError("--set", text, "must be agent.config.KEY=VALUE, or member's, or leader's")
        try:
            parsed = load_yaml(value)
        except yaml.YAMLError as error:
            raise InputError("--set", path, f'"{value}" is not YAML: {yaml_fault(error)}') from None
        *sections, last = key.split(".")
        into = config[Part(role)]
        for section in sections:
            into = into.setdefault(section, {})
            if not isinstance(into, dict):
                raise InputError("--set", path, f"another --set gives {section} a value that is no mapping")
        into[last] = parsed
    for part, values in config.items():
        for key, ports in _PORTS[part].items():
            value = value_at(values, *key.split("."))
            if value is None:
                continue
            host, _, port = str(value).rpartition(":")
            path, workload = f"{part}.config.{key}", "DaemonSet" if part is Part.AGENT else "Deployment"
            if port not in ports:
                raise InputError("--set", path, f"is also in the {workload}'s ports: install with the chart")
            if host not in _PROBED.get(key, (host,)):
                raise InputError("--set", path, f"is not reached by the {workload}'s probes at {host}")
    if args.clusterid:
        config[Part.AGENT]["clusterID"] = args.clusterid
    if Part.LEADER_ALL_NAMESPACES in parts:
        config[Part.LEADER]["namespace"] = "*"
    return Site(
        namespace=args.namespace,
        leader_namespace=args.leader_namespace,
        registry=args.registry.rstrip("/"),
        image=args.image,
        openvswitch_image=args.openvswitch_image or _openvswitch_beside(args.image),
        openvswitch=args.openvswitch,
        config=config,
    )


def _openvswitch_beside(image: str) -> str:
    """Return the name of Open vSwitch's image that goes with the agent's."""
    if "@" in image:
        raise InputError("--openvswitch-image", "", "is needed where --image names a digest")
    path, slash, name = image.rpartition("/")
    repository, colon, tag = name.partition(":")
    return f"{path}{slash}{repository}-openvswitch{colon}{tag}" if image else ""


def _check(site: Site, parts: set[Part]) -> None:
    """Read the configurations as agent and controllers will. Raises ConfigError."""
    from mcagent.agent import config as agents
    from mcagent.cli.common.agent_config import ANY_NODE
    from mcagent.config.reader import ConfigError, ConfigText
    from mcagent.controller import config as controllers
    from mcagent.controller.admin import manifests
    from mcagent.controller.admin.manifests import CONFIGURED, Part

    for part in sorted(CONFIGURED.keys() & parts):
        (config_map,) = [obj for obj in manifests.objects([part], site) if obj["kind"] == "ConfigMap"]
        content = ConfigText(config_map["data"][CONFIGURED[part]], f"ConfigMap mcagent-{part}")
        try:
            if part is Part.AGENT:
                agents.load(content, ANY_NODE, {})
            else:
                controllers.load(controllers.ControllerRole(str(part)), content, {}, {})
        except ConfigError as error:
            raise ConfigError(
                [InputError(f"{part}.config", wrong.path, wrong.reason) for wrong in error.errors]
            ) from None


def _text(objects: Sequence[dict[str, Any]], form: str) -> str:
    if form == "json":
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=120, explicit_start=True)
