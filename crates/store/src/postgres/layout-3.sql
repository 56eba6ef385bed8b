-- Blobs of more than one chunk. A blob of one chunk is stored in its own row, as all blobs were in
-- earlier layouts. A larger blob that is still in its row is split when it is read.

-- The chunks of a blob. While `bytes` is NULL, the upload is unfinished. `at` is the time of the
-- last chunk, in seconds.
CREATE TABLE cuts (
  tenant text COLLATE "C" NOT NULL,
  cut    uuid NOT NULL,
  at     bigint NOT NULL,
  bytes  bigint,
  PRIMARY KEY (tenant, cut)
);
CREATE INDEX cuts_unfinished ON cuts (at) WHERE bytes IS NULL;
CREATE TABLE pieces (
  tenant  text COLLATE "C" NOT NULL,
  cut     uuid NOT NULL,
  number  integer NOT NULL,
  packing smallint NOT NULL,
  hash    bytea NOT NULL,
  data    bytea NOT NULL,
  PRIMARY KEY (tenant, cut, number),
  FOREIGN KEY (tenant, cut) REFERENCES cuts (tenant, cut) ON DELETE CASCADE
);
ALTER TABLE pieces ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE blobs ADD COLUMN cut uuid;

DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['cuts', 'pieces'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format(
      'CREATE POLICY own_tenant ON %I USING (tenant = current_setting(''sapwood.tenant'', true))', name);
  END LOOP;
  -- The search for abandoned uploads covers all tenants.
  CREATE POLICY unfinished ON cuts FOR SELECT USING (bytes IS NULL AND current_setting('sapwood.door', true) = 'open');
END $$;
