"""Isolated bilateral reinforcement learning for agents that talk to each other, in JAX."""

__version__ = "0.1.0"
