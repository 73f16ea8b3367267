"""Where objects come from: an API server, listed and watched, or a directory of manifests."""
