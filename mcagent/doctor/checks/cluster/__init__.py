"""Checks of a cluster's API: each module has `CHECK` and `examine(cluster)`."""
