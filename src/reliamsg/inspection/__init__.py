"""Decoding the messages in outboxes and inboxes, for operators: single messages, and exports as plain SQLite files.

Reads only, even while the owner of a file runs. :mod:`reliamsg.inspection.target` alone needs sqlite-utils, from the
extra ``inspect``.
"""
