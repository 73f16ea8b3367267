"""`mcagent doctor`: what is wrong, why it matters, what to type next. A file per check in `checks`."""
