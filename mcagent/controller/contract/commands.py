"""kubectl commands that messages advise, for what a join by manifests needs and `mcagent clusterset join` does.

Pure text. A value of another cluster is part of a command only if it is a name, so that no shell interprets it.
"""

from __future__ import annotations

from mcagent.controller.contract import names

TOKEN_ROLE = "mcagent-leader-token"  # noqa: S105 (the name of a Role)
TOKEN_VERBS = ("get", "list", "watch", "update")  # update: a token that expires is renewed
CONTROLLER = "mcagent-controller"  # the member's ServiceAccount


def let_read_token(namespace: str, secret: str) -> str:
    """Return the commands, on the member, that let its controller read and renew the token in one Secret."""
    create = f"kubectl -n {namespace} create"
    secrets = f"--verb={','.join(TOKEN_VERBS)} --resource=secrets --resource-name={secret}"
    account = f"--serviceaccount={namespace}:{CONTROLLER}"
    return (
        f"{create} role {TOKEN_ROLE} {secrets} && {create} rolebinding {TOKEN_ROLE} --role={TOKEN_ROLE} {account}"
    )


def let_write_token(namespace: str, secret: str) -> str:
    """Return the command, on the member, that gives a Role of an earlier version the right to renew the token."""
    rule = f'{{"apiGroups":[""],"resources":["secrets"],"resourceNames":["{secret}"],"verbs":["update"]}}'
    patch = f'[{{"op":"add","path":"/rules/-","value":{rule}}}]'
    return f"kubectl -n {namespace} patch role {TOKEN_ROLE} --type=json -p '{patch}'"


def replace_token(leader_namespace: str, account: str, namespace: str) -> str:
    """Return the commands, on the leader and on the member, that replace the token of the leader."""
    name = account if names.is_subdomain(account) else "NAME"
    area = leader_namespace if names.is_label(leader_namespace) else "NAMESPACE"
    return (
        f"Next: on the leader, mcagent membertoken rotate {name} -n {area} -o token.yaml; here, "
        f"mcagent clusterset join -n {namespace} --token-secret-file token.yaml"
    )


def bind_account(namespace: str, account: str, cluster_id: str, *, placeholder: str = "") -> str:
    """Return the command, on the leader, by which a ServiceAccount stands for a cluster.

    The placeholder replaces an invalid cluster ID; without one the command is "".
    """
    value = cluster_id if names.is_cluster_id(cluster_id) else placeholder
    command = f"kubectl -n {namespace} annotate serviceaccount {account} {names.CLUSTER_ID_ANNOTATION}={value}"
    return command if value else ""
