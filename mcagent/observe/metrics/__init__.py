"""The metrics of the agent, a module for each subject."""
