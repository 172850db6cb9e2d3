"""The vocabulary of specs and twins, which every family shares."""
