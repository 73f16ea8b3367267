"""What several commands have in common. No command itself."""
