"""Which kinds of objects there are: built-in ones, custom resources, their schemas and validation."""
