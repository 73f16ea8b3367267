"""What `mcagent trace` is made of: whom names mean, the way from Node to Node, real probes, and the text."""
