"""From policies to the rules that this Node enforces on traffic between clusters. Pure."""
