"""Credentials of an API server by the official client's rules: kubeconfig, service account, tokens read again."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError

_CONNECTIONS = 64  # kept open for further requests; each watch has one


def token_kubeconfig(server: str, ca: bytes, token: str) -> RawObject:
    """Return the kubeconfig of somebody with a bearer token. `ca` is PEM; b"" trusts what the system trusts."""
    cluster = {"server": server}
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def load(kubeconfig: str | RawObject, context: str) -> Any:
    """Return an ApiClient with fresh credentials. Raises SourceError."""
    import yaml
    from kubernetes import client, config

    configuration = client.Configuration()
    inline = isinstance(kubeconfig, dict)
    what = "credentials" if inline else f"kubeconfig {kubeconfig}" if kubeconfig else "service account of this Pod"
    try:
        if inline:
            config.load_kube_config_from_dict(
                kubeconfig, context=context or None, client_configuration=configuration, persist_config=False
            )
        elif kubeconfig:
            assert isinstance(kubeconfig, str)
            if not Path(kubeconfig).is_file():
                raise SourceError(f"{what}: there is no such file")
            config.load_kube_config(
                config_file=kubeconfig,
                context=context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            config.load_incluster_config(configuration)
        configuration.retries = False
        configuration.connection_pool_maxsize = _CONNECTIONS
        return client.ApiClient(configuration)
    except (
        config.ConfigException,
        yaml.YAMLError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as err:
        hint = "" if kubeconfig else " (outside a Pod give a kubeconfig)"
        raise SourceError(f"{what}: cannot be used: {err}{hint}") from err


def authorization(configuration: Any) -> dict[str, str]:
    """Return the header that names us; a token file is read, or a plug-in run, anew by the client's own rules."""
    from kubernetes import config

    try:
        settings = configuration.auth_settings().values()
        return {item["key"]: item["value"] for item in settings if item["in"] == "header" and item["value"]}
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as err:
        raise SourceError(f"the credentials cannot be read: {err}") from err
