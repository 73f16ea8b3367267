"""Addresses and CIDRs: which may be used, at which ones tunnels end, and which cluster owns each."""
