"""Deal-or-No-Deal experiments."""
