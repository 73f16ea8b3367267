"""Reads what Open vSwitch prints into values of `flows`, for tests that compare these with the real thing."""
