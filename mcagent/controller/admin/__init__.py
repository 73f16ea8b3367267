"""What an administrator does to a ClusterSet from the command line: `mcagent clusterset`, `membertoken`, `get`."""
