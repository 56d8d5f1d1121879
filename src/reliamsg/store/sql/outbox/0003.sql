-- Groups whose session is known to exist at an MQTT site, so that its confirms of the stream count.
CREATE TABLE proven (
    site TEXT NOT NULL,
    stream_id INTEGER NOT NULL REFERENCES stream (id),
    grp TEXT NOT NULL,
    marked INTEGER NOT NULL, -- whether the mark that the group leaves there was seen
    PRIMARY KEY (site, stream_id, grp)
) STRICT, WITHOUT ROWID;
