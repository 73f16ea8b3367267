"""A module for each step of the packet, with all flows of the step's tables, for all owners."""
