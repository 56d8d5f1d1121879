CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The actions of this client, in ranges; see store/journal.py for kinds and columns.
CREATE TABLE journal (
    lsn INTEGER PRIMARY KEY AUTOINCREMENT,
    boot TEXT NOT NULL,
    kind TEXT NOT NULL,
    wall_us INTEGER NOT NULL,
    wall_last_us INTEGER NOT NULL,
    mono_us INTEGER NOT NULL,
    producer TEXT NOT NULL,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    site TEXT NOT NULL,
    grp TEXT NOT NULL,
    reason TEXT NOT NULL,
    digest TEXT,
    latency TEXT,
    detail TEXT
) STRICT;

-- The known streams of the group. `history` is a JSON object: finished and superseded epochs, closed gaps.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    producer TEXT NOT NULL,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    joined_epoch INTEGER,
    joined_first INTEGER,
    history TEXT NOT NULL,
    UNIQUE (producer, topic, part)
) STRICT;

-- Epochs that are not finished. Everything below `position` is settled, and so are the ranges of `settled` (a JSON
-- array of [first, last]); numbers below `high_water` may have been delivered, those up to `journalled` are in the
-- journal as delivered.
CREATE TABLE epoch (
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    prev_epoch INTEGER,
    prev_incarnation TEXT,
    prev_last INTEGER,
    position INTEGER NOT NULL,
    high_water INTEGER NOT NULL,
    journalled INTEGER NOT NULL DEFAULT 0,
    settled TEXT NOT NULL,
    last INTEGER,
    entered INTEGER NOT NULL,
    PRIMARY KEY (stream_id, epoch)
) STRICT, WITHOUT ROWID;

-- The gap at a stream's head, and how long it has held up the stream.
CREATE TABLE gap (
    stream_id INTEGER PRIMARY KEY REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER,
    elapsed_s REAL NOT NULL
) STRICT;

-- Delivery attempts of messages whose handling failed, or that may have been delivered before a crash.
CREATE TABLE attempt (
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (stream_id, epoch, seq)
) STRICT, WITHOUT ROWID;

-- Messages that wait for others or are not acknowledged: `first` to `last` of the batch in `frame`.
CREATE TABLE held (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    size INTEGER NOT NULL,
    site TEXT NOT NULL,
    received_us INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE INDEX held_in_order ON held (stream_id, epoch, last, first, size);

-- Messages that arrived after their gap was passed, until the application has seen them.
CREATE TABLE late (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    size INTEGER NOT NULL,
    site TEXT NOT NULL,
    received_us INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;

CREATE TABLE dead_letter (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    seq INTEGER NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    wall_us INTEGER NOT NULL
) STRICT;

-- Samples of unusable deliveries, bounded: `frame` may be truncated, `size` is the original size.
CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    wall_us INTEGER NOT NULL,
    site TEXT NOT NULL,
    address TEXT NOT NULL,
    reason TEXT NOT NULL,
    size INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
