"""A group's half of the protocol: what arrives, what is delivered, and what is missing."""
