"""Experiments on Vehicle TeleSales."""
