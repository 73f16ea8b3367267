"""kubectl commands that messages advise, for what a join by manifests needs and `mcagent clusterset join` does.

Pure text. A value of another cluster is part of a command only if it is a name, so that no shell interprets it.
"""

from __future__ import annotations

from mcagent.controller.contract import names

TOKEN_ROLE = "mcagent-leader-token"  # noqa: S105 (the name of a Role)
CONTROLLER = "mcagent-controller"  # the member's ServiceAccount


def let_read_token(namespace: str, secret: str) -> str:
    """Return the commands, on the member, that let its controller read the Secret with the leader's token."""
    create = f"kubectl -n {namespace} create"
    secrets = f"--verb=get,list,watch --resource=secrets --resource-name={secret}"
    account = f"--serviceaccount={namespace}:{CONTROLLER}"
    return (
        f"{create} role {TOKEN_ROLE} {secrets} && {create} rolebinding {TOKEN_ROLE} --role={TOKEN_ROLE} {account}"
    )


def bind_account(namespace: str, account: str, cluster_id: str, *, placeholder: str = "") -> str:
    """Return the command, on the leader, by which a ServiceAccount stands for a cluster.

    The placeholder replaces an invalid cluster ID; without one the command is "".
    """
    value = cluster_id if names.is_cluster_id(cluster_id) else placeholder
    command = f"kubectl -n {namespace} annotate serviceaccount {account} {names.CLUSTER_ID_ANNOTATION}={value}"
    return command if value else ""
