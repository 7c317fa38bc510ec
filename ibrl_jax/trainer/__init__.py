"""Algorithm 1: rollouts, rewards, advantages, updates, pool, and the checkpoint of it all."""
