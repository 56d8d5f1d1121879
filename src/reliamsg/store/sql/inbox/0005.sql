-- Numbers of the epoch up to `let_go` exist: they arrived behind a gap, and were left to their producer, which retains them.
ALTER TABLE epoch ADD COLUMN let_go INTEGER NOT NULL DEFAULT 0;
