"""Who meets whom, metrics, clustered statistics."""
