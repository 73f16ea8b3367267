"""Traffic through a lab: who answers, what is sent, what came of it."""
