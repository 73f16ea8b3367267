"""Encryption between clusters: which gateways are encrypted to, with which keys, and what that takes."""
