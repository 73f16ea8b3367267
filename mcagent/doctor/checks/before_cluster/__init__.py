"""Checks of a cluster's API before the installation: each module has `CHECK` and `examine(cluster)`."""
