"""Frozen policies that meet others: evaluations, mismatch, adversaries."""
