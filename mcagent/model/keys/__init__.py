"""Configuration keys: how a field of a dataclass declares one, and the types of their values. Knows no key."""
