"""HTTP servers with limits for slow and many clients: pages, health, and the base of the webhook's server."""
