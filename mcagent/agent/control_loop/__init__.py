"""The control loop: one thread that makes the dataplane equal to what should be."""
