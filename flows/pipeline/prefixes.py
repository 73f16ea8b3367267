"""Virtual prefixes: addresses of Pods in bridges and in other clusters that differ from those in kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flows.fields import Address, Network


class VirtualPrefix(Protocol):
    """A Pod CIDR, `real` in the kernels of its cluster, and `virtual` in bridges. Both have the same length."""

    @property
    def real(self) -> Network:
        """The CIDR in kernels."""

    @property
    def virtual(self) -> Network:
        """The CIDR in bridges and other clusters."""


def address_in_bridge(address: Address, prefixes: Iterable[VirtualPrefix]) -> Address:
    """Return an address of this cluster as bridges see it: virtual, if it lies in a translated Pod CIDR."""
    return next((_moved(address, p.real, p.virtual) for p in prefixes if address in p.real), address)


def address_in_kernel(address: Address, prefixes: Iterable[VirtualPrefix]) -> Address:
    """Return an address of this cluster as its kernels see it."""
    return next((_moved(address, p.virtual, p.real) for p in prefixes if address in p.virtual), address)


def network_in_bridge(network: Network, prefixes: Iterable[VirtualPrefix]) -> Network:
    """Return a network of this cluster as bridges see it. A network around a translated one stays."""
    for prefix in prefixes:
        if network.network_address in prefix.real and network.prefixlen >= prefix.real.prefixlen:
            first = _moved(network.network_address, prefix.real, prefix.virtual)
            return type(network)((first, network.prefixlen))
    return network


def _moved(address: Address, old: Network, new: Network) -> Address:
    return new[int(address) - int(old.network_address)]
