"""``reliamsg top``: how outboxes and inboxes are doing, again and again."""
