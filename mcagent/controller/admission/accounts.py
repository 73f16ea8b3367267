"""Which accounts have rights in admission. Pure.

An account is identified by namespace and name: a user who may create ServiceAccounts in any namespace chooses the
name. The rules of an object's kind decide what an account may do with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ACCOUNT = "system:serviceaccount:"
KUBE_SYSTEM = "kube-system"
CONTROLLER_NAMES = ("mcagent-controller", "antrea-mc-controller")
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
    """The ServiceAccounts of a ClusterSet beside the members': the leader's controllers, and trusted ones."""

    controllers: frozenset[Caller] = frozenset()
    trusted: frozenset[Caller] = frozenset()


def accounts_of(home: str, *, controllers: Iterable[str] = (), trusted: Iterable[str] = ()) -> Accounts:
    """Return the accounts of a controller in the namespace `home`; arguments are "namespace/name".

    Without `controllers`: mcagent's and Antrea's of `home`.
    """
    own = frozenset(Caller(namespace=home, name=name) for name in CONTROLLER_NAMES)
    return Accounts(controllers=_callers(controllers) or own, trusted=_callers(trusted))


def _callers(texts: Iterable[str]) -> frozenset[Caller]:
    split = (text.partition("/") for text in texts)
    return frozenset(Caller(namespace=namespace, name=name) for namespace, _, name in split)


def caller_of(user: str) -> Caller | None:
    """Return the ServiceAccount of a user name; None for any other user."""
    namespace, _, name = user.removeprefix(ACCOUNT).partition(":")
    is_account = user.startswith(ACCOUNT) and bool(namespace) and bool(name) and ":" not in name
    return Caller(namespace=namespace, name=name) if is_account else None


def is_kubernetes(user: str) -> bool:
    """Return whether the user deletes for others: the garbage collector or the namespace controller."""
    return user == _MANAGER or caller_of(user) in (_GARBAGE_COLLECTOR, _NAMESPACE_CONTROLLER)


def is_administrator(user: str, accounts: Accounts) -> bool:
    """Return whether RBAC alone decides: for trusted ServiceAccounts, and users that are not ServiceAccounts."""
    if user.startswith(ACCOUNT):
        return caller_of(user) in accounts.trusted
    return bool(user)
