"""Reads configuration from a file, the environment and flags. Declares no key."""
