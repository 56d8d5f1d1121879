"""``reliamsg doctor``: examines sites and files before, or while, clients use them."""
