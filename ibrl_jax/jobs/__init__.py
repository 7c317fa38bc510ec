"""Several processes on one machine: a queue, what a person sees of it, and each of them."""
