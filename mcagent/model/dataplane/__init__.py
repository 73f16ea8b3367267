"""A Node's dataplane as values: what the Node has, and what the agent programs on it."""
