-- For how long the gap's clock stood still, since a producer said that it holds what is missing.
ALTER TABLE gap ADD COLUMN waited_s REAL NOT NULL DEFAULT 0;
