"""One backend per facility of the Node, each able to observe and to apply."""
