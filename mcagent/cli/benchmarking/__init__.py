"""The parts of `mcagent benchmark`: its two ends, and the Pods that they run in."""
