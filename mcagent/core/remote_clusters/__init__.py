"""Remote clusters: what each one claims, and which claims are granted."""
