"""Commands that run, configure and remove the components of a Node and of a control plane."""
