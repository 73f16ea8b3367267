"""From the difference of two states to the ordered steps of a plan, and how people and programs read one."""
