"""What ours is measured beside: a worker an implementation, each in their own environment."""
