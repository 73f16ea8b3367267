"""Who makes a request, and which accounts count. Pure.

An account is always named by namespace and name: anybody who may make ServiceAccounts in some namespace can have
the name alone. The rules of an object's kind decide what an account may do with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcagent.model.api.admission import UserInfo

ACCOUNT = "system:serviceaccount:"
NODE_CLAIM = "authentication.kubernetes.io/node-name"
"""Of `userInfo.extra`: the Node of a token's Pod. Kubernetes 1.30 (KEP-4193, on by default), in all releases
since; the API server takes it from the signed token, and kubelets only get tokens for Pods of their own Node."""
KUBE_SYSTEM = "kube-system"
CONTROLLER_NAMES = ("mcagent-controller", "antrea-mc-controller")
AGENT_NAMES = ("mcagent-agent", "antrea-agent")
_MANAGER = "system:kube-controller-manager"  # all its controllers, without --use-service-account-credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A ServiceAccount that makes a request."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"


_GARBAGE_COLLECTOR = Caller(namespace=KUBE_SYSTEM, name="generic-garbage-collector")
_NAMESPACE_CONTROLLER = Caller(namespace=KUBE_SYSTEM, name="namespace-controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The ServiceAccounts of a ClusterSet beside the members': controllers, agents, and trusted ones."""

    controllers: frozenset[Caller] = frozenset()
    agents: frozenset[Caller] = frozenset()
    trusted: frozenset[Caller] = frozenset()
    agents_without_node: bool = False  # agents whose tokens name no Node may write every Node's key


def accounts_of(
    home: str,
    *,
    controllers: Iterable[str] = (),
    agents: Iterable[str] = (),
    trusted: Iterable[str] = (),
    agents_without_node: bool = False,
) -> Accounts:
    """Return the accounts that count for a controller in the namespace `home`. All are "namespace/name".

    Without `controllers`: ours and Antrea's of `home`. Without `agents`: those of `home` and of kube-system.
    """
    return Accounts(
        controllers=_callers(controllers) or _named([home], CONTROLLER_NAMES),
        agents=_callers(agents) or _named([home, KUBE_SYSTEM], AGENT_NAMES),
        trusted=_callers(trusted),
        agents_without_node=agents_without_node,
    )


def _named(namespaces: Iterable[str], names: Iterable[str]) -> frozenset[Caller]:
    names = tuple(names)
    return frozenset(Caller(namespace=namespace, name=name) for namespace in namespaces for name in names)


def _callers(texts: Iterable[str]) -> frozenset[Caller]:
    split = (text.partition("/") for text in texts)
    return frozenset(Caller(namespace=namespace, name=name) for namespace, _, name in split)


def caller_of(user: str) -> Caller | None:
    """Return the ServiceAccount of a user name; None for any other user."""
    namespace, _, name = user.removeprefix(ACCOUNT).partition(":")
    is_account = user.startswith(ACCOUNT) and bool(namespace) and bool(name) and ":" not in name
    return Caller(namespace=namespace, name=name) if is_account else None


def node_of(user_info: UserInfo) -> str:
    """Return the Node that a token is for; "" if it says none."""
    values = user_info.extra.get(NODE_CLAIM)
    if not isinstance(values, list) or len(values) != 1 or not isinstance(values[0], str):
        return ""
    return values[0]


def is_garbage_collector(user: str) -> bool:
    """Tell whether the user is the garbage collector: it deletes, and removes finalizers and owner references."""
    return user == _MANAGER or caller_of(user) == _GARBAGE_COLLECTOR


def is_kubernetes(user: str) -> bool:
    """Tell whether the user deletes for others: the garbage collector or the namespace controller."""
    return is_garbage_collector(user) or caller_of(user) == _NAMESPACE_CONTROLLER


def is_administrator(user: str, accounts: Accounts) -> bool:
    """Tell whether RBAC alone decides: for users that are no ServiceAccounts, and for trusted ServiceAccounts."""
    if user.startswith(ACCOUNT):
        return caller_of(user) in accounts.trusted
    return bool(user)
