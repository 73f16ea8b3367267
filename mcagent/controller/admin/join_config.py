"""The join config of a cluster: Antrea's ClusterSetJoinConfig, and the token's Secret if it is in the same file.

Reads and writes files; knows no cluster. Only the owner can read files with a token.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from mcagent.http.listening import is_loopback
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.parsing.field import describe

API_VERSION = "multicluster.antrea.io/v1alpha1"
KIND = "ClusterSetJoinConfig"
_KEYS = {
    "clusterSetID": "cluster_set",
    "clusterID": "cluster_id",
    "namespace": "namespace",
    "leaderClusterID": "leader_id",
    "leaderNamespace": "leader_namespace",
    "leaderAPIServer": "leader_server",
    "tokenSecretName": "secret_name",
    "tokenSecretFile": "secret_file",
}
_NEEDED = ("clusterSetID", "clusterID", "leaderClusterID", "leaderNamespace", "leaderAPIServer")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig:
    """The fields of a ClusterSetJoinConfig; "" is a missing one."""

    cluster_set: str = ""
    cluster_id: str = ""
    namespace: str = ""
    leader_id: str = ""
    leader_namespace: str = ""
    leader_server: str = ""
    secret_name: str = ""
    secret_file: str = ""

    def over(self, other: JoinConfig) -> JoinConfig:
        """Return this join config; missing fields are those of `other`."""
        fields_with_value = {key: value for key, value in asdict(self).items() if value}
        return replace(other, **fields_with_value)

    def missing(self) -> list[str]:
        """Return the required keys that are missing."""
        return [key for key in _NEEDED if not getattr(self, _KEYS[key])]


def read(path: Path) -> tuple[JoinConfig, RawObject | None]:
    """Return the join config of a file, and the Secret in it, None if it has none. Raises InputError, OSError."""
    subject = str(path)
    config, secret = JoinConfig(), None
    for document in documents(path):
        kind = document.get("kind")
        if kind == "Secret":
            secret = document
        elif kind == KIND:
            config = _config(document, subject)
        else:
            raise InputError(subject, "kind", f"must be {KIND} or Secret, is {kind}")
    if config == JoinConfig():
        raise InputError(subject, "", f"holds no {KIND}")
    return config, secret


def _config(document: RawObject, subject: str) -> JoinConfig:
    if document.get("apiVersion") != API_VERSION:
        raise InputError(subject, "apiVersion", f"must be {API_VERSION}, is {document.get('apiVersion')}")
    values = {}
    for key, value in document.items():
        if key in ("apiVersion", "kind"):
            continue
        if key not in _KEYS:
            raise InputError(subject, str(key), f"unknown key; known are {', '.join(_KEYS)}")
        if value is not None and not isinstance(value, str):
            raise InputError(subject, key, f"must be a string, is {describe(value)}")
        values[_KEYS[key]] = value or ""
    return JoinConfig(**values)


def read_secret(path: Path) -> RawObject:
    """Return the Secret in a manifest. Raises InputError, OSError, without the content of the file."""
    secrets = [document for document in documents(path) if document.get("kind") == "Secret"]
    if len(secrets) != 1:
        raise InputError(str(path), "", f"must hold one Secret, holds {len(secrets)}")
    return secrets[0]


def documents(path: Path) -> list[RawObject]:
    """Return the YAML documents of a file. Raises InputError, OSError."""
    try:
        items = [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item is not None]
    except yaml.MarkedYAMLError as error:  # its text has the line, which can be a token
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(str(path), "", f"not YAML{line}") from None
    except (yaml.YAMLError, ValueError):  # also that of 2026-13-45, which has the form of a date
        raise InputError(str(path), "", "not YAML") from None
    for item in items:
        if not isinstance(item, dict):
            raise InputError(str(path), "", f"a document must be a mapping, is {describe(item)}")
    return items


def text(config: JoinConfig) -> str:
    """Return a join config as YAML, with the keys that a member adds as comments."""
    values = {key: getattr(config, attribute) for key, attribute in _KEYS.items() if getattr(config, attribute)}
    hints = {
        "clusterID": "the ID of the cluster that joins",
        "namespace": "where its controller runs",
        "tokenSecretName": "a Secret in that namespace that is there already, or:",
        "tokenSecretFile": "a manifest of the Secret; or put the Secret into this file, after a line ---",
    }
    comments = [f'#{key}: "" # {hint}' for key, hint in hints.items() if key not in values]
    head = yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND} | values, sort_keys=False)
    return "\n".join((head.rstrip(), *comments)) + "\n"


def is_local(server: str) -> bool:
    """Tell whether only this machine reaches the server of a URL, as in kubeconfigs of kind and of tunnels."""
    try:
        return is_loopback(urlsplit(server).hostname or "")
    except ValueError:  # a host name
        return False


def write(path: Path, content: str, *, secret: bool) -> None:
    """Write a new file; only its owner can read one with a secret. Raises OSError, also if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 (a descriptor, not a path)
        stream.write(content)


assert {field.name for field in fields(JoinConfig)} == set(_KEYS.values())
