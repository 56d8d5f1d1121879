"""The consumer: threads around the core."""
