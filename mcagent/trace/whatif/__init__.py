"""What would become of traffic if something were different: assumptions, the ways of connections, what differs."""
