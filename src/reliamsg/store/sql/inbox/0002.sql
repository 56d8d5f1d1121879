-- How long the gap's clock was stopped because a producer announced that it holds the missing messages.
ALTER TABLE gap ADD COLUMN waited_s REAL NOT NULL DEFAULT 0;
