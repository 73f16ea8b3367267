"""The JSON that agents serve and commands print, as frozen structs: docs/api.md says what of it is stable."""
