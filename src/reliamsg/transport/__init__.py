"""Brokers behind one port."""
