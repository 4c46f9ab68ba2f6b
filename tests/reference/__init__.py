"""Slow, obvious versions to compare with."""
