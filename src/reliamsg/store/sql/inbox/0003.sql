-- Whole, valid deliveries that can't be accepted at present: durable here, so that their brokers may forget them.
-- `replay` is 1 if they are to be processed as if they arrived again.
CREATE TABLE quarantined_delivery (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    reason TEXT NOT NULL,
    site TEXT NOT NULL,
    producer TEXT NOT NULL,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    prev_epoch INTEGER,
    prev_incarnation TEXT,
    prev_last INTEGER,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    size INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    replay INTEGER NOT NULL DEFAULT 0,
    frame BLOB NOT NULL,
    UNIQUE (producer, topic, part, epoch, incarnation, first, last)
) STRICT;
CREATE INDEX quarantined_replay ON quarantined_delivery (producer, topic, part, epoch, first) WHERE replay = 1;
