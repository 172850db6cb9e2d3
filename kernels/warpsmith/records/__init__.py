"""What stands on record, what of it is up to date, and the pages made of it."""
