"""What travels: frames, headers and addresses, and the limits on them."""
