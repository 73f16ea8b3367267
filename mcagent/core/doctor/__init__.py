"""What `mcagent doctor` concludes from what was seen. Pure."""
