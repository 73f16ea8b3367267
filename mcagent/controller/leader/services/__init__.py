"""Exported Services on the leader: ResourceExports of all clusters to two ResourceImports each."""
