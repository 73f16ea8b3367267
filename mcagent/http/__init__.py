"""HTTP servers that no client can hold up: pages, health, and what the webhook is served by."""
