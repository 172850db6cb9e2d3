"""Showing that every implementation is right."""
