"""Checks of a Node before the installation, made on it: each module has `CHECK` and `examine(node)`."""
