"""Reading configuration: values, keys, file, environment and flags. Knows no key of anybody."""
