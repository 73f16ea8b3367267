"""A file per check: what it reads, how it judges that, what findings mean. CONTRIBUTING.md shows a new one."""
