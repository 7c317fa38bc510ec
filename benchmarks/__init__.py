"""Speed and memory, measured; `make bench-gpu` and its like run these."""
