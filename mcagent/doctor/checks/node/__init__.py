"""Checks of a Node, made on it: each module has `CHECK` and `examine(node)`."""
