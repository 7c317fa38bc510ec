"""Commands that show on a real run what must hold: isolation, resumption, several hosts."""
