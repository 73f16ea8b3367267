"""Objects as they are kept: versions, history, writes, patches, ownership of fields, life cycle."""
