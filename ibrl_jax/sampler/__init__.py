"""The batched engine: slots, prefill, decode, caches, sampling."""
