"""``reliamsg demo``: two sites, two faults, and what became of every message."""
