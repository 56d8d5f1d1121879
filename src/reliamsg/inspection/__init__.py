"""Decoding the messages in outboxes and inboxes, for operators: single messages, and exports as plain SQLite files.

:mod:`reliamsg.inspection.overview` reads the numbers of a whole file, without decoding messages.

Reads only, even while the owner of a file runs. :mod:`reliamsg.inspection.target` alone needs sqlite-utils, from the
extra ``inspect``.
"""
