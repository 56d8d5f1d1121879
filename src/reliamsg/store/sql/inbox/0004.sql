-- The remains of forgotten streams, to recognize messages of them that arrive again.
CREATE TABLE tombstone (
    producer TEXT NOT NULL,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    position INTEGER NOT NULL,
    high_water INTEGER NOT NULL,
    journalled INTEGER NOT NULL,
    joined_epoch INTEGER,
    joined_first INTEGER,
    history TEXT NOT NULL,
    PRIMARY KEY (producer, topic, part)
) STRICT, WITHOUT ROWID;

-- When an epoch's position changed last, by the wall clock in µs since 1970, to find idle streams.
ALTER TABLE epoch ADD COLUMN used_us INTEGER NOT NULL DEFAULT 0;
UPDATE epoch SET used_us = CAST(strftime('%s', 'now') AS INTEGER) * 1000000;
