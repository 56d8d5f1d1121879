"""Sites in memory."""
