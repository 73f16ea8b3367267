"""What several checks of a Node read: devices, chains of netfilter, probes. Each within a deadline."""
