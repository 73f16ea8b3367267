"""What the agent says about itself: logs, metrics, Events and the pages of its HTTP servers."""
