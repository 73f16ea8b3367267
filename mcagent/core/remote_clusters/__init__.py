"""The other clusters: what each claims, and what of it is used."""
