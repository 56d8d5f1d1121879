"""Outbox, inbox and journal: SQLite files that survive a crash at any instant."""
