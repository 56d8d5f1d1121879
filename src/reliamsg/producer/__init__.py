"""The producer: a writer thread and site threads around the core."""
