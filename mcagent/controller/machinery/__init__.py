"""What runs reconcilers: cache, work queue, workers, writer, lease, and the connection to the leader."""
