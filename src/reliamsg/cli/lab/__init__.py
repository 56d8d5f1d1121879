"""``reliamsg lab``: simulated worlds, and faults at real brokers and processes."""
