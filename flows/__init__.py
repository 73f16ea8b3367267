"""OpenFlow as values: tables, matches, actions, flows, groups, their text form, and a simulator.

A library of its own: pure, importable alone, and without knowledge of Kubernetes or of mcagent.
"""
