"""The audit: Spark jobs that say, from the clients' journals alone, what became of every message.

Needs ``pip install 'reliamsg[audit]'`` and Java 17 or 21. Nothing else of reliamsg imports this package.
"""
