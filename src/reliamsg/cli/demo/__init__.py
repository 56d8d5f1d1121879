"""``reliamsg demo``: two sites, two faults, and the fate of every message."""
