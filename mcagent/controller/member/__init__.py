"""The reconcilers of a member cluster."""
