-- A group that must get a stream's messages from (since_epoch, since_next) on. It has settled, that is
-- acknowledged or declared lost, everything before (epoch, next).
CREATE TABLE member (
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    grp TEXT NOT NULL,
    since_epoch INTEGER NOT NULL,
    since_next INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (stream_id, grp)
) STRICT, WITHOUT ROWID;

-- Sequence numbers that were removed on demand; groups need not wait for them.
CREATE TABLE removed (
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    epoch INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (stream_id, epoch, first)
) STRICT, WITHOUT ROWID;

-- For repairs, which are requested by number.
CREATE INDEX batch_number ON batch (stream_id, epoch, seq);

-- Earlier versions did not store since when a group counts: it counts for all stored messages, or for new ones.
INSERT OR IGNORE INTO stream (topic, part)
    SELECT topic.key, 0 FROM meta, json_each(meta.value) AS topic WHERE meta.name = 'groups';
INSERT OR IGNORE INTO member (stream_id, grp, since_epoch, since_next, epoch, next)
    WITH start (id, epoch, next) AS (
        SELECT s.id,
            coalesce((SELECT epoch FROM batch WHERE stream_id = s.id ORDER BY id LIMIT 1),
                     (SELECT max(epoch) FROM chain WHERE stream_id = s.id), 1),
            coalesce((SELECT seq FROM batch WHERE stream_id = s.id ORDER BY id LIMIT 1),
                     (SELECT last + 1 FROM chain WHERE stream_id = s.id ORDER BY epoch DESC LIMIT 1), 1)
        FROM stream AS s
    )
    SELECT s.id, named.value, start.epoch, start.next, start.epoch, start.next
    FROM meta, json_each(meta.value) AS topic, json_each(topic.value) AS named
    JOIN stream AS s ON s.topic = topic.key AND s.part = 0
    JOIN start ON start.id = s.id
    WHERE meta.name = 'groups';
DELETE FROM meta WHERE name = 'groups';

-- Messages that were enqueued earlier may have been sent, confirmed or not.
INSERT INTO meta (name, value) SELECT 'offered', value FROM meta WHERE name = 'epoch';
