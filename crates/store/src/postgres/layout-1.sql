-- The first layout. Every key begins with the tenant and, where there is one, the session, so that
-- each table can be partitioned or distributed by tenant, and no key spans partitions.

CREATE TABLE tenants (
  tenant       text COLLATE "C" PRIMARY KEY,
  audit_number bigint NOT NULL DEFAULT 0,
  audit_hash   text NOT NULL DEFAULT ''
);

-- A session. Its summary is a cache of its log and is updated by every append. Every change of the
-- row, except indexing, increments its version: an append is written only if the version is still
-- the one it was prepared on. An erased session that forks still need has no id and is only
-- reachable as their base.
CREATE TABLE sessions (
  tenant       text COLLATE "C" NOT NULL,
  pk           bigint GENERATED ALWAYS AS IDENTITY,
  id           text COLLATE "C",
  parent       text COLLATE "C",
  base         bigint,
  base_seq     integer,
  inherited    integer NOT NULL DEFAULT 0,
  version      bigint NOT NULL DEFAULT 1,
  head         integer NOT NULL DEFAULT 0,
  -- The time of the last entry, which lists are sorted by: its minute, and in milliseconds. Only the
  -- minute is indexed, so most appends change no index.
  listed_slot  bigint NOT NULL,
  listed_at    bigint NOT NULL,
  -- Whether there are entries after `indexed` that the search index has not processed.
  behind       boolean NOT NULL DEFAULT false,
  indexed      integer NOT NULL DEFAULT 0,
  lease_holder text,
  lease_fence  bigint NOT NULL DEFAULT 0,
  lease_until  bigint NOT NULL DEFAULT 0,
  -- Whether a turn has begun and not ended.
  is_open      boolean NOT NULL DEFAULT false,
  summary      text,
  PRIMARY KEY (tenant, pk)
) WITH (fillfactor = 60);
ALTER TABLE sessions ALTER COLUMN summary SET STORAGE MAIN;
CREATE UNIQUE INDEX sessions_by_id ON sessions (tenant, id) WHERE id IS NOT NULL;
CREATE INDEX sessions_by_time ON sessions (tenant, listed_slot) WHERE id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_base ON sessions (tenant, base) WHERE base IS NOT NULL;
CREATE INDEX sessions_open ON sessions (tenant, pk) WHERE is_open;
CREATE INDEX sessions_behind ON sessions (tenant, pk) WHERE behind;

-- The log. depth, jump, messages and settings are the entry's links (see sapwood_core::tree);
-- snapshot holds the settings where they change. Bodies are already compressed, so the database
-- does not compress them again.
CREATE TABLE entries (
  tenant   text COLLATE "C" NOT NULL,
  session  bigint NOT NULL,
  seq      integer NOT NULL,
  parent   integer,
  depth    integer,
  jump     integer,
  messages integer,
  settings integer,
  id       uuid NOT NULL,
  at       bigint NOT NULL,
  kind     smallint NOT NULL,
  version  smallint NOT NULL,
  packing  smallint NOT NULL,
  turn     uuid,
  by       text COLLATE "C" NOT NULL,
  snapshot text,
  body     bytea NOT NULL,
  PRIMARY KEY (tenant, session, seq)
);
ALTER TABLE entries ALTER COLUMN body SET STORAGE EXTERNAL;
-- Kinds that are queried separately: compactions, labels, rounds … The index skips plain messages.
CREATE INDEX entries_by_kind ON entries (tenant, session, kind, seq) WHERE kind > 3;

-- The first answer to each idempotency key.
CREATE TABLE answers (
  tenant  text COLLATE "C" NOT NULL,
  session bigint NOT NULL,
  key     text COLLATE "C" NOT NULL,
  answer  text NOT NULL,
  PRIMARY KEY (tenant, session, key)
);

CREATE TABLE blobs (
  tenant  text COLLATE "C" NOT NULL,
  hash    bytea NOT NULL,
  packing smallint NOT NULL,
  data    bytea NOT NULL,
  PRIMARY KEY (tenant, hash)
);
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE blob_puts (
  tenant    text COLLATE "C" NOT NULL,
  hash      bytea NOT NULL,
  principal text COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, hash, principal)
);
CREATE TABLE blob_uses (
  tenant  text COLLATE "C" NOT NULL,
  session bigint NOT NULL,
  seq     integer NOT NULL,
  hash    bytea NOT NULL,
  PRIMARY KEY (tenant, session, seq, hash),
  -- A blob cannot be erased while a reference to it is being added.
  FOREIGN KEY (tenant, hash) REFERENCES blobs (tenant, hash)
);
CREATE INDEX blob_uses_by_hash ON blob_uses (tenant, hash);

CREATE TABLE audit (
  tenant  text COLLATE "C" NOT NULL,
  number  bigint NOT NULL,
  session text COLLATE "C",
  line    text NOT NULL,
  PRIMARY KEY (tenant, number)
);
CREATE INDEX audit_by_session ON audit (tenant, session, number) WHERE session IS NOT NULL;

-- API keys. Only the hash of the secret is stored. A key is looked up by this hash, before the
-- tenant is known.
CREATE TABLE keys (
  tenant text COLLATE "C" NOT NULL,
  number bigint GENERATED ALWAYS AS IDENTITY,
  hash   bytea PRIMARY KEY,
  row    text NOT NULL
);
CREATE INDEX keys_by_tenant ON keys (tenant, number);

-- Memories, and the sessions that support them, so that erasing a session finds its memories.
CREATE TABLE memories (
  tenant        text COLLATE "C" NOT NULL,
  id            uuid NOT NULL,
  owner         text COLLATE "C" NOT NULL,
  superseded_by uuid,
  row           text NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX memories_by_owner ON memories (tenant, owner, id);
CREATE INDEX memories_superseded ON memories (tenant, superseded_by) WHERE superseded_by IS NOT NULL;
CREATE TABLE memory_sources (
  tenant  text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  memory  uuid NOT NULL,
  PRIMARY KEY (tenant, session, memory)
);
CREATE INDEX memory_sources_by_memory ON memory_sources (tenant, memory);

-- The search index: the distinct words of each text, without positions. It lags behind the log and
-- is brought up to date before a search, so that appends do not pay for it.
CREATE TABLE texts (
  tenant  text COLLATE "C" NOT NULL,
  session bigint NOT NULL,
  seq     integer NOT NULL,
  at      bigint NOT NULL,
  words   tsvector NOT NULL,
  PRIMARY KEY (tenant, session, seq)
);
CREATE INDEX texts_by_word ON texts USING gin (words);

-- Row-level security as a second barrier: even if a query omits the tenant, a transaction sees only
-- the rows of its tenant.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['sessions', 'entries', 'answers', 'blobs', 'blob_puts', 'blob_uses', 'audit', 'memories',
                              'memory_sources', 'texts'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format(
      'CREATE POLICY own_tenant ON %I USING (tenant = current_setting(''sapwood.tenant'', true))', name);
  END LOOP;
  -- The search for turns that lost their process covers all tenants.
  CREATE POLICY open_turns ON sessions FOR SELECT USING (is_open AND current_setting('sapwood.door', true) = 'open');
  -- Keys and tenants are looked up before a tenant is known.
  FOREACH name IN ARRAY ARRAY['keys', 'tenants'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format(
      'CREATE POLICY own_tenant ON %I USING (tenant = current_setting(''sapwood.tenant'', true)
                                             OR current_setting(''sapwood.door'', true) = ''open'')', name);
  END LOOP;
  -- If the pool connects as the owner of the tables, the policies are forced on it, too. The search
  -- index is exempt: a condition on words cannot use the index behind a policy, so it is only
  -- queried through find_texts.
  FOREACH name IN ARRAY ARRAY['sessions', 'entries', 'answers', 'blobs', 'blob_puts', 'blob_uses', 'audit', 'memories',
                              'memory_sources', 'keys', 'tenants'] LOOP
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
  END LOOP;
END $$;

-- Appends to several sessions of one tenant in one statement. Each is written only if its session
-- still has the version it was prepared on. An append whose key was used before gets the first
-- answer. An append that is not in the result was not written.
CREATE FUNCTION append_batch(
  p_tenant text,
  j_pk bigint[], j_version bigint[], j_head integer[], j_listed bigint[], j_behind boolean[], j_open boolean[], j_summary text[],
  j_key text[], j_answer text[],
  e_job integer[], e_seq integer[], e_parent integer[], e_depth integer[], e_jump integer[], e_messages integer[],
  e_settings integer[], e_id uuid[], e_at bigint[], e_kind smallint[], e_version smallint, e_packing smallint[],
  e_turn uuid[], e_by text[], e_snapshot text[], e_body bytea[],
  u_job integer[], u_seq integer[], u_hash bytea[]
) RETURNS TABLE (job integer, answer text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_answered integer[] := '{}';
  v_written integer[];
BEGIN
  PERFORM set_config('sapwood.tenant', p_tenant, true);
  IF array_remove(j_key, NULL) <> '{}' THEN
    v_answered := ARRAY(
      SELECT j.job::integer FROM unnest(j_pk, j_key) WITH ORDINALITY AS j (pk, key, job)
      JOIN answers a ON a.tenant = p_tenant AND a.session = j.pk AND a.key = j.key);
    RETURN QUERY
      SELECT j.job::integer, a.answer FROM unnest(j_pk, j_key) WITH ORDINALITY AS j (pk, key, job)
      JOIN answers a ON a.tenant = p_tenant AND a.session = j.pk AND a.key = j.key;
  END IF;
  WITH written AS (
    UPDATE sessions s
    SET version = s.version + 1, head = j.head, listed_at = j.listed, 
        listed_slot = (j.listed - ((j.listed % 60000) + 60000) % 60000) / 60000,
        behind = s.behind OR j.behind, is_open = j.is_open, summary = j.summary
    FROM unnest(j_pk, j_version, j_head, j_listed, j_behind, j_open, j_summary)
      WITH ORDINALITY AS j (pk, version, head, listed, behind, is_open, summary, job)
    WHERE s.tenant = p_tenant AND s.pk = j.pk AND s.version = j.version AND s.id IS NOT NULL
      AND j.job <> ALL (v_answered)
    RETURNING j.job::integer
  ) SELECT coalesce(array_agg(job), '{}') INTO v_written FROM written;
  INSERT INTO entries (tenant, session, seq, parent, depth, jump, messages, settings, id, at, kind, version, packing, turn,
                       by, snapshot, body)
  SELECT p_tenant, j_pk[e.job], e.seq, e.parent, e.depth, e.jump, e.messages, e.settings, e.id, e.at, e.kind, e_version,
         e.packing, e.turn, e.by, e.snapshot, e.body
  FROM unnest(e_job, e_seq, e_parent, e_depth, e_jump, e_messages, e_settings, e_id, e_at, e_kind, e_packing, e_turn, e_by,
              e_snapshot, e_body)
    AS e (job, seq, parent, depth, jump, messages, settings, id, at, kind, packing, turn, by, snapshot, body)
  WHERE e.job = ANY (v_written);
  IF array_remove(j_key, NULL) <> '{}' THEN
    INSERT INTO answers (tenant, session, key, answer)
    SELECT p_tenant, j.pk, j.key, j.answer FROM unnest(j_pk, j_key, j_answer) WITH ORDINALITY AS j (pk, key, answer, job)
    WHERE j.key IS NOT NULL AND j.job = ANY (v_written);
  END IF;
  IF u_job <> '{}' THEN
    INSERT INTO blob_uses (tenant, session, seq, hash)
    SELECT DISTINCT p_tenant, j_pk[u.job], u.seq, u.hash FROM unnest(u_job, u_seq, u_hash) AS u (job, seq, hash)
    WHERE u.job = ANY (v_written);
  END IF;
  RETURN QUERY SELECT w, NULL::text FROM unnest(v_written) AS w;
END $$;

-- The entry at depth p_depth on the path to p_from, in the numbering of session p_pk. Uses jump
-- pointers where possible.
CREATE FUNCTION ancestor_at(p_tenant text, p_pk bigint, p_inherited integer, p_from integer, p_depth integer)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_seq integer := p_from;
  v record;
  v_far integer;
BEGIN
  LOOP
    IF v_seq IS NULL OR v_seq <= p_inherited THEN
      RETURN CASE WHEN p_depth BETWEEN 1 AND coalesce(v_seq, 0) THEN p_depth END;
    END IF;
    SELECT parent, depth, jump INTO v FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v_seq;
    IF NOT FOUND OR v.depth IS NULL OR v.depth < p_depth THEN
      RETURN NULL;
    ELSIF v.depth = p_depth THEN
      RETURN v_seq;
    END IF;
    SELECT depth INTO v_far FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v.jump;
    v_seq := CASE WHEN v.jump <> v_seq AND v_far >= p_depth THEN v.jump ELSE v.parent END;
  END LOOP;
END $$;

-- The first of the session's own entries on the path to p_from at which the path has p_count
-- messages.
CREATE FUNCTION highest_with(p_tenant text, p_pk bigint, p_from integer, p_count integer)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_seq integer := p_from;
  v record;
  v_above integer;
BEGIN
  LOOP
    SELECT parent, jump INTO v FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v_seq;
    SELECT messages INTO v_above FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v.jump;
    IF v.jump <> v_seq AND v_above >= p_count THEN
      v_seq := v.jump;
      CONTINUE;
    END IF;
    SELECT messages INTO v_above FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v.parent;
    IF NOT FOUND OR v_above < p_count THEN
      RETURN v_seq;
    END IF;
    v_seq := v.parent;
  END LOOP;
END $$;

-- The first of the session's own entries whose id is p_id or greater. Ids grow with seq (I13), so
-- this is a binary search.
CREATE FUNCTION first_at_or_after(p_tenant text, p_pk bigint, p_low integer, p_high integer, p_id uuid)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_low integer := p_low;
  v_high integer := p_high;
  v_middle integer;
  v_id uuid;
BEGIN
  WHILE v_low < v_high LOOP
    v_middle := v_low + (v_high - v_low) / 2;
    SELECT id INTO v_id FROM entries WHERE tenant = p_tenant AND session = p_pk AND seq = v_middle;
    IF v_id < p_id THEN
      v_low := v_middle + 1;
    ELSE
      v_high := v_middle;
    END IF;
  END LOOP;
  RETURN v_low;
END $$;

-- Texts with these words, newest first. Runs as its owner, because the index of words cannot be
-- used behind a policy. So it filters by tenant itself, and returns nothing to a transaction that
-- has not set that tenant.
CREATE FUNCTION find_texts(p_tenant text, p_words text, p_at bigint, p_session bigint, p_seq integer, p_limit integer)
RETURNS TABLE (session bigint, seq integer, at bigint) LANGUAGE sql STABLE SECURITY DEFINER AS $$
  SELECT t.session, t.seq, t.at FROM texts t
  WHERE t.words @@ p_words::tsquery AND t.tenant = p_tenant AND p_tenant = current_setting('sapwood.tenant', true)
    AND (t.at, t.session, t.seq) < (p_at, p_session, p_seq)
  ORDER BY t.at DESC, t.session DESC, t.seq DESC LIMIT p_limit
$$;
ALTER FUNCTION find_texts SET search_path = sapwood, pg_temp;
