"""Where packets go: a Node's switch, or a simulator of its flows, traces a hop; paths, what-if build on that."""
