"""The agent: the control loop that keeps a Node's dataplane equal to the desired state, and its reports."""
