-- Rows of the journal from this number on are of version 2 of its format; older ones may be extended for any time, and
-- their stamps may run backwards.
INSERT OR IGNORE INTO meta (name, value)
    SELECT 'journal_v2_lsn', CAST(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0) + 1 AS TEXT);
