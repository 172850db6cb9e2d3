"""Honest times, and what the card can do at best."""
