"""A Node of the lab and what surrounds it: namespaces, Open vSwitch, underlay, CNI, kube-proxy."""
