"""Addresses and CIDRs: which may be used, which the underlay has, and whose each is."""
