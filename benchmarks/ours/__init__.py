"""Ours, each run a process of its own."""
