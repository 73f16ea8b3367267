"""ResourceExports as the leader reads them: checked, bounded by what their cluster may claim, and answered."""
