"""The product in a simulated world: its real core, stores, sending and receiving logic under one seeded scheduler.

No threads, no sockets, no sleeping: one seed makes one history, whatever the machine. See docs/how-to/simulate.md.
"""
