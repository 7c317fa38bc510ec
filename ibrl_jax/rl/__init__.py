"""Pure functions and one learner: advantages, losses, batches, opponent pool, schedule."""
