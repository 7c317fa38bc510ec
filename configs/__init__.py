"""One file an experiment: a plain `get_config()`, a small difference from another."""
