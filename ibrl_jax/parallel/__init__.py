"""Mesh, sharding rules, several hosts."""
