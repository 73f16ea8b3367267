"""Frozen values: what the API says, what the dataplane should be, what it is. No I/O."""
