"""The networks, weights in and out."""
