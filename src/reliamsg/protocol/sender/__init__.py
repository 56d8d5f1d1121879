"""A producer's half of the protocol: what is sent, confirmed, consumed and sent again."""
