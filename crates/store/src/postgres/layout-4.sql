-- Log format 3. The step only marks the database: from here on, entries are written in format 3,
-- which servers of the previous version cannot read, and those servers refuse to start. Entries of
-- format 2 stay as they are and are upgraded when they are read.
SELECT 1;
