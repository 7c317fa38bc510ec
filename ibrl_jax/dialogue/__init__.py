"""The dialogue loop, trajectories and role views, chat templates, the agents that take turns."""
