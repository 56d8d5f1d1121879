"""The audit: Spark jobs that reconstruct the fate of every message from the clients' journals alone.

Requires ``pip install 'reliamsg[audit]'`` and Java 17 or 21. No other package of reliamsg imports this one.
"""
