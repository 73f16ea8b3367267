"""The controller's HTTP pages and metrics."""
