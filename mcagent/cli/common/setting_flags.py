"""The flags of the configuration: --config of every command, and a flag for each key of the long-running ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcagent.agent.config import SCHEMA, Settings, load
from mcagent.config.reader import unknown_variables
from mcagent.config.schema import Schema
from mcagent.model.keys.key import Key

_PREFIX = "key:"


def add_config_flag(parser: argparse.ArgumentParser, own: Mapping[str, tuple[str, str]] | None = None) -> None:
    """Declare --config, and the flags of the agent's keys `own`: metavar and help text by path of the key.

    The flags of the other keys, which these commands had once, end with a message that says what replaces them,
    unless the command has declared a flag of that name.
    """
    _add_file_flag(parser, SCHEMA)
    own = own or {}
    for key in SCHEMA.keys:
        if key.path in own:
            _add_key_flag(parser, key, *own[key.path])
        elif key.flag not in parser._option_string_actions:
            parser.add_argument(
                key.flag, action=_RemovedFlag, dest=argparse.SUPPRESS, const=key, nargs="?", help=argparse.SUPPRESS
            )


def add_key_flags(parser: argparse.ArgumentParser, schema: Schema = SCHEMA) -> None:
    """Declare --config, a flag for each key, which --help leaves out, and --help-config, which lists these."""
    parser.formatter_class = _HelpWithoutKeys
    _add_file_flag(parser, schema)
    parser.add_argument(
        "--help-config", action=_HelpConfig, const=schema, nargs=0, help="list the flag of each configuration key"
    )
    group = parser.add_argument_group(
        "configuration keys",
        "Each configuration key is a flag, too, and overrides environment and file. --help-config lists them.",
    )
    for key in schema.keys:
        _add_key_flag(group, key)


def _add_file_flag(parser: argparse.ArgumentParser, schema: Schema) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"YAML file with the configuration (environment: {schema.file_variable}) "
        f"[{schema.default_file}, if it exists]",
    )


def _add_key_flag(parser: argparse._ActionsContainer, key: Key, metavar: str = "VALUE", text: str = "") -> None:
    boolean = key.value.switch
    default = "required" if key.required else key.value.show(key.default)
    parser.add_argument(
        key.flag,
        dest=_PREFIX + key.path,
        metavar=metavar,
        nargs="?" if boolean else None,
        const="true" if boolean else None,
        help=(text or f"{key.meaning} [{default}]").replace("%", "%%"),
    )


class _RemovedFlag(argparse.Action):
    """The flag of a key (`const`) that the command does not have any more."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        key: Key = self.const
        parser.error(
            f"{key.flag} is no flag of this command: "
            f"set {key.path} in the file of --config, or {SCHEMA.variable(key)} in the environment"
        )


class _HelpConfig(argparse.Action):
    """Prints the flags of all keys of a schema (`const`) and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        listing = argparse.ArgumentParser(usage=f"{parser.prog} [--KEY VALUE ...] ...", add_help=False)
        group = listing.add_argument_group("configuration keys")
        for key in self.const.keys:
            _add_key_flag(group, key)
        listing.print_help()
        parser.exit()


class _HelpWithoutKeys(argparse.RawDescriptionHelpFormatter):
    """Leaves out the flags of configuration keys."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, _without_keys(actions), groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        super().add_arguments(_without_keys(actions))


def _without_keys(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    return [action for action in actions if not action.dest.startswith(_PREFIX)]


def read_flags(args: argparse.Namespace, schema: Schema) -> tuple[Path | None, dict[str, str]]:
    """Return the configuration file and the flags of keys, by path, of a command line."""
    flags = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(_PREFIX) and value is not None
    }
    named = args.config or os.environ.get(schema.file_variable)
    default = Path(schema.default_file)
    return Path(named) if named else default if default.is_file() else None, flags


def load_settings(args: argparse.Namespace, *, node_needed: bool = True, strict: bool = False) -> Settings:
    """Return the configuration from the parsed flags, the environment and the file. Raises ConfigError.

    A flag --kubeconfig replaces that of the configuration. Unless `node_needed`, a missing name of the Node is no
    error: the file that all Nodes share has none. Unless `strict`, unknown variables are reported only: other
    tools may have variables with the same prefix.
    """
    file, flags = read_flags(args, SCHEMA)
    environ = dict(os.environ)
    if not node_needed:
        environ.setdefault("MCAGENT_NODE_NAME", "any")
    if not strict:
        for name, reason in unknown_variables(SCHEMA, environ).items():
            del environ[name]
            print(f"environment {name} is ignored: {reason}", file=sys.stderr)
    settings = load(file, environ, flags)
    kubeconfig = getattr(args, "kubeconfig", "")
    return replace(settings, kubeconfig=kubeconfig) if kubeconfig else settings


def value_of_flag(args: argparse.Namespace, path: str) -> str:
    """Return the value of a key's flag on the command line; "" if it is not given."""
    return getattr(args, _PREFIX + path, None) or ""
