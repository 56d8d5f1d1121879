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

CREATE TABLE stream (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    UNIQUE (topic, part)
) STRICT;

-- A stream's non-empty epochs. `last` is its highest sequence number.
CREATE TABLE chain (
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (stream_id, epoch)
) STRICT, WITHOUT ROWID;

-- A row is a batch with its frame as sent. AUTOINCREMENT, because ids are cursors and must not be reused.
-- The frame is the last column, so that the other columns can be read without it.
CREATE TABLE batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    size INTEGER NOT NULL,
    wall_us INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE INDEX batch_stream ON batch (stream_id, id);

-- Every row below `cursor` is confirmed by the site, or belongs to a stream that is parked there.
CREATE TABLE site (
    name TEXT PRIMARY KEY,
    cursor INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE parked (
    site TEXT NOT NULL REFERENCES site (name) ON DELETE CASCADE,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    cursor INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (site, stream_id)
) STRICT, WITHOUT ROWID;
