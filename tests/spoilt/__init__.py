"""Judges of journals are judged: real journals, spoilt in known ways, and the one verdict that each deserves."""
