"""The pure part: from a snapshot of the API to the desired dataplane, and the difference to the actual one."""
