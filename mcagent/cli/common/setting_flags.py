"""The flags of the configuration: one for the file, one for each key."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mcagent.agent.config import SCHEMA, Settings, load
from mcagent.config.keys import Schema

_PREFIX = "key:"


def add_setting_flags(parser: argparse.ArgumentParser, schema: Schema = SCHEMA) -> None:
    """Declare --config and one flag per key."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"YAML file with the configuration (environment: {schema.file_variable}) "
        f"[{schema.default_file}, if it is there]",
    )
    group = parser.add_argument_group(
        "configuration keys", "Each key of the configuration is a flag too, and wins over environment and file."
    )
    for key in schema.keys:
        boolean = key.value.switch
        default = "required" if key.default is None else key.value.show(key.default)
        meaning = key.meaning.replace("%", "%%")
        group.add_argument(
            key.flag,
            dest=_PREFIX + key.path,
            metavar="VALUE",
            nargs="?" if boolean else None,
            const="true" if boolean else None,
            help=f"{meaning} [{default}]",
        )


def given(args: argparse.Namespace, schema: Schema) -> tuple[Path | None, dict[str, str]]:
    """Return the configuration file and the flags of keys that a command line has."""
    flags = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(_PREFIX) and value is not None
    }
    named = args.config or os.environ.get(schema.file_variable)
    default = Path(schema.default_file)
    return Path(named) if named else default if default.is_file() else None, flags


def load_settings(args: argparse.Namespace, *, node_needed: bool = True) -> Settings:
    """Return the configuration from the parsed flags, the environment and the file. Raises ConfigError.

    Where the Node's name is not needed, one that is not given anywhere is no error: it is usually not in the
    file that all Nodes share.
    """
    file, flags = given(args, SCHEMA)
    environ = dict(os.environ)
    if not node_needed:
        environ.setdefault("MCAGENT_NODE_NAME", "any")
    return load(file, environ, flags)
