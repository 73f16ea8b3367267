"""What the doctor sees of a Node: read only, each part within a deadline, none of them needed for the others."""
