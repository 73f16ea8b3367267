"""Commands that read: the state of agents and clusters, and what would happen."""
