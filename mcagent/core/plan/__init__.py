"""Plans: the ordered steps between two states, contention with other writers, and rendering."""
