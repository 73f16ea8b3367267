"""Policies between clusters: label identities, and the policies that the leader replicates."""
