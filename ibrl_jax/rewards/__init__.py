"""Judges: rule-based and LLM; typed results."""
