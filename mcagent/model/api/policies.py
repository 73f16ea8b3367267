"""Kinds of policies, Kubernetes' and Antrea's, as far as they are read or written.

Source: networking.k8s.io/v1, policy.networking.k8s.io/v1alpha1 and v1alpha2, crd.antrea.io/v1beta1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcagent.model.api.base import NO_FIELDS, ApiObject, ApiPart
from mcagent.model.objects import Kind


class PolicyObject(ApiObject, frozen=True):
    """A policy, Kubernetes' or Antrea's, whose content is passed on whole."""

    spec: Mapping[str, Any] = NO_FIELDS


class Manifest(PolicyObject, frozen=True):
    """A policy that says of which kind it is."""

    api_version: str = ""
    kind: str = ""


class NetworkPolicy(PolicyObject, frozen=True):
    """networking.k8s.io/v1 NetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.NETWORK_POLICY


class AdminNetworkPolicy(PolicyObject, frozen=True):
    """policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.ADMIN_NETWORK_POLICY


class BaselineAdminNetworkPolicy(PolicyObject, frozen=True):
    """policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.BASELINE_ADMIN_NETWORK_POLICY


class UpstreamClusterNetworkPolicy(PolicyObject, frozen=True):
    """policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.UPSTREAM_CLUSTER_NETWORK_POLICY


class AntreaNetworkPolicy(PolicyObject, frozen=True):
    """crd.antrea.io/v1beta1 NetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.ANTREA_NETWORK_POLICY


class AntreaPolicyStatus(ApiPart, frozen=True):
    """crd.antrea.io/v1beta1 NetworkPolicyStatus. Antrea's controller sets the phase; "" where it does not run."""

    phase: str = ""


class ClusterNetworkPolicy(PolicyObject, frozen=True):
    """crd.antrea.io/v1beta1 ClusterNetworkPolicy."""

    KIND: ClassVar[Kind] = Kind.CLUSTER_NETWORK_POLICY

    status: AntreaPolicyStatus = AntreaPolicyStatus()


class TierSpec(ApiPart, frozen=True):
    """The content of a Tier."""

    priority: int | None = None


class ApiTier(ApiObject, frozen=True):
    """crd.antrea.io/v1beta1 Tier."""

    KIND: ClassVar[Kind] = Kind.TIER

    spec: TierSpec = TierSpec()
