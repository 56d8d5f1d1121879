"""``reliamsg lab``: fault injection in simulations, and with real brokers and processes."""
