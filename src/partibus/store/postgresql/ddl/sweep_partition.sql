-- Remove up to so many rows of each table of a dropped partition; true when none are left and the note is gone.
CREATE OR REPLACE FUNCTION sweep_partition(
    our_epoch bigint, our_incarnation text, gone bigint, most bigint, most_states bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    first CONSTANT bigint := gone << 42;
    last CONSTANT bigint := (gone << 42) + ((1::bigint << 42) - 1);
    swept bigint;
    found_rows bigint;
    elsewhere bigint[];
BEGIN
    PERFORM 1 FROM owner WHERE epoch = our_epoch AND incarnation = our_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fenced off' USING ERRCODE = 'PB001';
    END IF;
    WITH gone_entries AS (
        DELETE FROM entry WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM entry WHERE key BETWEEN first AND last ORDER BY key LIMIT most))
        RETURNING body
    )
    SELECT count(*), coalesce(array_agg(body) FILTER (WHERE body NOT BETWEEN first AND last), '{}')
    INTO swept, elsewhere FROM gone_entries;
    -- A subscription's messages are its topic's bodies, some of them others' as well.
    DELETE FROM body WHERE key = ANY (elsewhere) AND (((key >> 38) & 1) = 0 OR NOT EXISTS (
        SELECT 1 FROM entry WHERE entry.body = body.key AND ((entry.body >> 38) & 1) <> 0));
    DELETE FROM body WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM body WHERE key BETWEEN first AND last ORDER BY key LIMIT most));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    swept := swept + found_rows;
    DELETE FROM session_state WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM session_state WHERE partition_row = gone ORDER BY session LIMIT most_states));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    swept := swept + found_rows;
    DELETE FROM duplicate_id WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM duplicate_id WHERE partition_row = gone ORDER BY bucket, id LIMIT most));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    swept := swept + found_rows;
    DELETE FROM fate WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM fate WHERE key BETWEEN first AND last ORDER BY key LIMIT most));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    swept := swept + found_rows;
    DELETE FROM sink_id WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM sink_id WHERE partition_row = gone ORDER BY sink, id LIMIT most));
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF swept + found_rows > 0 THEN
        RETURN false;
    END IF;
    DELETE FROM dropped_partition WHERE partition_row = gone;
    RETURN true;
END
$$;
