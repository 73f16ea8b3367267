"""What an admission review asks. Source: admission.k8s.io/v1 AdmissionRequest."""

from __future__ import annotations

from mcagent.model.api.base import ApiObject, ApiPart


class UserInfo(ApiPart, frozen=True):
    """authentication.k8s.io/v1 UserInfo."""

    username: str = ""


class GroupVersionKind(ApiPart, frozen=True):
    """metav1.GroupVersionKind, of which only the kind is read."""

    kind: str = ""


class AdmissionRequest(ApiPart, frozen=True):
    """What a review is about, but for the objects."""

    kind: GroupVersionKind = GroupVersionKind()
    namespace: str = ""
    name: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()


class NamedObject(ApiObject, frozen=True):
    """An object of any kind that says what it is."""

    kind: str = ""
