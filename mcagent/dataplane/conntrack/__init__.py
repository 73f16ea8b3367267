"""The kernel's connection tracking: which connections there are, and those asked whether they go on."""
