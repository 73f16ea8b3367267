"""What `mcagent version -o json` prints."""

from __future__ import annotations

from mcagent.api.codec import VERSION, CamelRecord


class ComponentVersion(CamelRecord, frozen=True):
    """The version of a Pod of mcagent. `image`: as the Pod names it; `error`: why the version is unknown."""

    component: str = ""
    namespace: str = ""
    pod: str = ""
    node: str = ""
    image: str = ""
    version: str = ""
    error: str = ""


class VersionReport(CamelRecord, frozen=True):
    """The version of the program that prints this, and with --all those of a cluster's components."""

    api_version: str = VERSION
    version: str = ""
    components: tuple[ComponentVersion, ...] = ()
