"""Policies on traffic between clusters: the rules that this Node enforces. Pure."""
