"""Reports of the agent on its state: logs, metrics, Events and the pages of its HTTP servers."""
