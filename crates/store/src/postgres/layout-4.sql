-- Log format 3. From here on, entries are written in format 3, which servers of the previous version
-- cannot read, and those servers refuse to start. Entries of format 2 stay as they are and are
-- upgraded when they are read.

-- The hash of each entry. NULL for entries of format 2 until `sapwood doctor --seal`.
ALTER TABLE entries ADD COLUMN proof bytea;
ALTER TABLE entries ALTER COLUMN proof SET STORAGE PLAIN;

-- Like append_batch, with proofs. Servers that have not noticed the upgrade yet still call append_batch.
CREATE FUNCTION append_proven(
  p_tenant text,
  j_pk bigint[], j_version bigint[], j_head integer[], j_listed bigint[], j_behind boolean[], j_open boolean[], j_summary text[],
  j_key text[], j_answer text[],
  e_job integer[], e_seq integer[], e_parent integer[], e_depth integer[], e_jump integer[], e_messages integer[],
  e_settings integer[], e_id uuid[], e_at bigint[], e_kind smallint[], e_version smallint, e_packing smallint[],
  e_turn uuid[], e_by text[], e_snapshot text[], e_body bytea[],
  u_job integer[], u_seq integer[], u_hash bytea[], e_proof bytea[]
) RETURNS TABLE (job integer, answer text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v record;
  v_written integer[] := '{}';
BEGIN
  PERFORM set_config('sapwood.tenant', p_tenant, true);
  FOR v IN SELECT * FROM unnest(j_pk, j_version, j_head, j_listed, j_behind, j_open, j_summary, j_key)
             WITH ORDINALITY AS j (pk, version, head, listed, behind, is_open, summary, key, job) LOOP
    IF v.key IS NOT NULL THEN
      SELECT a.answer INTO answer FROM answers a WHERE a.tenant = p_tenant AND a.session = v.pk AND a.key = v.key;
      IF FOUND THEN
        job := v.job;
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;
    UPDATE sessions s
    SET version = s.version + 1, head = v.head, listed_at = v.listed,
        listed_slot = (v.listed - ((v.listed % 60000) + 60000) % 60000) / 60000,
        behind = s.behind OR v.behind, is_open = v.is_open, summary = v.summary
    WHERE s.tenant = p_tenant AND s.pk = v.pk AND s.version = v.version AND s.id IS NOT NULL;
    IF FOUND THEN
      v_written := v_written || v.job::integer;
    END IF;
  END LOOP;
  INSERT INTO entries (tenant, session, seq, parent, depth, jump, messages, settings, id, at, kind, version, packing, turn,
                       by, snapshot, body, proof)
  SELECT p_tenant, j_pk[e.job], e.seq, e.parent, e.depth, e.jump, e.messages, e.settings, e.id, e.at, e.kind, e_version,
         e.packing, e.turn, e.by, e.snapshot, e.body, e.proof
  FROM unnest(e_job, e_seq, e_parent, e_depth, e_jump, e_messages, e_settings, e_id, e_at, e_kind, e_packing, e_turn, e_by,
              e_snapshot, e_body, e_proof)
    AS e (job, seq, parent, depth, jump, messages, settings, id, at, kind, packing, turn, by, snapshot, body, proof)
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
