"""The backends of the Node's dataplane, each able to observe and to apply; readers of facts and connections."""
