"""The agent: the loop that keeps a Node's dataplane equal to what the API says."""
