"""Exported and imported Services."""
