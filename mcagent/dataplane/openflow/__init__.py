"""Flows, groups and meters of our bridge, and packets given to it (OpenFlow 1.5)."""
