"""Open vSwitch on Nodes that have none: `mcagent openvswitch` runs its two daemons in a container.

Knows nothing of agent and controllers; for these it is an Open vSwitch like any other.
"""
