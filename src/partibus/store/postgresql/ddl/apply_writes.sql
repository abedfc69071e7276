-- One commit: fence, rows, in the order of partibus.partition.protocol.ports.Writes. Called as a statement of its own, so that a
-- commit is one round trip and one transaction which nobody can leave open.
--
-- Lists of rows come as flat arrays of whole numbers, so many columns a row; what is no number comes in one blob per
-- table, with (first byte, length) of each row's part among the numbers. The least bigint stands for NULL in a time, a
-- first byte of 0 for a NULL.
CREATE OR REPLACE FUNCTION apply_writes(
    our_epoch bigint, our_incarnation text, commit_number bigint, lease_ms bigint, now_ms bigint,
    partitions bigint[], subqueues bigint[],
    bodies bigint[], body_data bytea,
    entries bigint[], entry_sessions bigint[], entry_session_data bytea,
    updates bigint[],
    states bigint[], state_data bytea,
    ids bigint[], id_data bytea,
    forgotten bigint[],
    marks bigint[],
    answered bigint[], answered_data bytea, forgotten_before bigint,
    cursors bigint[], gone_cursors bigint[], cursor_data bytea, kept bigint[], fates bigint[], gone_fates bigint[],
    sink_ids bigint[], sink_id_data bytea, sink_batches bigint[], gone_sink_ids bigint[],
    session_locks bigint[], session_lock_data bytea,
    unlocked bigint[], locks bigint[], lock_data bytea,
    gone_entries bigint[], gone_bodies bigint[], gone_shared_bodies bigint[],
    dropped bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    no_time CONSTANT bigint := -9223372036854775808;
    at integer;
BEGIN
    UPDATE owner
    SET last_commit = commit_number, until_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + lease_ms,
        highest_ms = greatest(highest_ms, now_ms)
    WHERE epoch = our_epoch AND incarnation = our_incarnation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fenced off' USING ERRCODE = 'PB001';
    END IF;

    IF cardinality(partitions) > 0 THEN
        INSERT INTO partition (partition_row, next_sequence, next_number, session_state_bytes)
        SELECT partitions[n], partitions[n + 1], partitions[n + 2], partitions[n + 3]
        FROM generate_series(1, cardinality(partitions), 4) AS n
        ON CONFLICT (partition_row) DO UPDATE SET
            next_sequence = excluded.next_sequence, next_number = excluded.next_number,
            session_state_bytes = excluded.session_state_bytes;
    END IF;
    IF cardinality(subqueues) > 0 THEN
        INSERT INTO subqueue (key, messages, bytes)
        SELECT subqueues[n], subqueues[n + 1], subqueues[n + 2] FROM generate_series(1, cardinality(subqueues), 3) AS n
        ON CONFLICT (key) DO UPDATE SET messages = excluded.messages, bytes = excluded.bytes;
    END IF;

    IF cardinality(bodies) > 0 THEN
        INSERT INTO body (key, data)
        SELECT bodies[n], substring(body_data FROM bodies[n + 1]::integer FOR bodies[n + 2]::integer)
        FROM generate_series(1, cardinality(bodies), 3) AS n;
    END IF;
    IF cardinality(entries) > 0 THEN
        IF cardinality(entry_sessions) = 0 THEN
            INSERT INTO entry (key, body, sequence, enqueued_ms, state, delivery_count, due_ms)
            SELECT entries[n], entries[n + 1], entries[n + 2], entries[n + 3], entries[n + 4]::smallint,
                entries[n + 5], nullif(entries[n + 6], no_time)
            FROM generate_series(1, cardinality(entries), 7) AS n;
        ELSE
            INSERT INTO entry (key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms)
            SELECT entries[7 * n + 1], entries[7 * n + 2], entries[7 * n + 3], entries[7 * n + 4],
                entries[7 * n + 5]::smallint, entries[7 * n + 6],
                CASE WHEN entry_sessions[2 * n + 1] > 0 THEN
                    substring(entry_session_data FROM entry_sessions[2 * n + 1]::integer
                              FOR entry_sessions[2 * n + 2]::integer)
                END,
                nullif(entries[7 * n + 7], no_time)
            FROM generate_series(0, cardinality(entries) / 7 - 1) AS n;
        END IF;
    END IF;
    IF cardinality(updates) > 0 THEN
        UPDATE entry SET body = new.body, state = new.state, delivery_count = new.delivery_count, due_ms = new.due_ms
        FROM (
            SELECT updates[n] AS key, updates[n + 1] AS body, updates[n + 2]::smallint AS state,
                updates[n + 3] AS delivery_count, nullif(updates[n + 4], no_time) AS due_ms
            FROM generate_series(1, cardinality(updates), 5) AS n
        ) AS new
        WHERE entry.key = new.key;
    END IF;

    IF cardinality(states) > 0 THEN
        -- partition row, name (first, length), state (first, length), time
        DELETE FROM session_state USING (
            SELECT states[n] AS partition_row,
                substring(state_data FROM states[n + 1]::integer FOR states[n + 2]::integer) AS session
            FROM generate_series(1, cardinality(states), 6) AS n
            WHERE states[n + 3] = 0
        ) AS gone
        WHERE session_state.partition_row = gone.partition_row AND session_state.session = gone.session;
        INSERT INTO session_state (partition_row, session, state, updated_ms)
        SELECT states[n], substring(state_data FROM states[n + 1]::integer FOR states[n + 2]::integer),
            substring(state_data FROM states[n + 3]::integer FOR states[n + 4]::integer), states[n + 5]
        FROM generate_series(1, cardinality(states), 6) AS n
        WHERE states[n + 3] > 0
        ON CONFLICT (partition_row, session) DO UPDATE SET state = excluded.state, updated_ms = excluded.updated_ms;
    END IF;

    IF cardinality(ids) > 0 THEN
        INSERT INTO duplicate_id (partition_row, bucket, id, accepted_ms, original)
        SELECT ids[n], ids[n + 1], substring(id_data FROM ids[n + 2]::integer FOR ids[n + 3]::integer), ids[n + 4],
            CASE WHEN ids[n + 6] > 0 THEN substring(id_data FROM ids[n + 5]::integer FOR ids[n + 6]::integer) END
        FROM generate_series(1, cardinality(ids), 7) AS n
        ON CONFLICT (partition_row, bucket, id)
            DO UPDATE SET accepted_ms = excluded.accepted_ms, original = excluded.original;
    END IF;
    IF cardinality(forgotten) > 0 THEN
        FOR at IN 1 .. cardinality(forgotten) BY 3 LOOP
            DELETE FROM duplicate_id WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM duplicate_id
                WHERE partition_row = forgotten[at] AND bucket < forgotten[at + 1]
                ORDER BY bucket, id LIMIT forgotten[at + 2]
            ));
        END LOOP;
    END IF;

    IF cardinality(marks) > 0 THEN
        INSERT INTO inbound_mark (partition_row, source, pos)
        SELECT marks[n], marks[n + 1], marks[n + 2] FROM generate_series(1, cardinality(marks), 3) AS n
        ON CONFLICT (partition_row, source) DO UPDATE SET pos = excluded.pos;
    END IF;

    IF forgotten_before <> no_time THEN
        DELETE FROM executed WHERE at_ms < forgotten_before;
    END IF;
    IF cardinality(answered) > 0 THEN
        -- asker (first, length), time, requests (first, length)
        INSERT INTO executed (asker, at_ms, requests)
        SELECT substring(answered_data FROM answered[n]::integer FOR answered[n + 1]::integer), answered[n + 2],
            substring(answered_data FROM answered[n + 3]::integer FOR answered[n + 4]::integer)
        FROM generate_series(1, cardinality(answered), 5) AS n;
    END IF;

    IF cardinality(gone_cursors) > 0 THEN
        DELETE FROM cursor USING generate_series(1, cardinality(gone_cursors), 3) AS n
        WHERE subqueue = gone_cursors[n]
            AND name = substring(cursor_data FROM gone_cursors[n + 1]::integer FOR gone_cursors[n + 2]::integer);
    END IF;
    IF cardinality(cursors) > 0 THEN
        -- sub-queue, name (first, length), the other columns
        INSERT INTO cursor (subqueue, name, position, fate_position, complete_from, bound_bytes, created_ms, moved_ms,
            epoch, until_ms)
        SELECT cursors[n], substring(cursor_data FROM cursors[n + 1]::integer FOR cursors[n + 2]::integer),
            cursors[n + 3], cursors[n + 4], cursors[n + 5], cursors[n + 6], cursors[n + 7], cursors[n + 8],
            cursors[n + 9], cursors[n + 10]
        FROM generate_series(1, cardinality(cursors), 11) AS n
        ON CONFLICT (subqueue, name) DO UPDATE SET
            position = excluded.position, fate_position = excluded.fate_position,
            complete_from = excluded.complete_from, bound_bytes = excluded.bound_bytes,
            created_ms = excluded.created_ms, moved_ms = excluded.moved_ms, epoch = excluded.epoch,
            until_ms = excluded.until_ms;
    END IF;
    IF cardinality(kept) > 0 THEN
        INSERT INTO retained (key, messages, bytes)
        SELECT kept[n], kept[n + 1], kept[n + 2] FROM generate_series(1, cardinality(kept), 3) AS n
        ON CONFLICT (key) DO UPDATE SET messages = excluded.messages, bytes = excluded.bytes;
    END IF;
    IF cardinality(fates) > 0 THEN
        INSERT INTO fate (key, pos, sequence, fate, at_ms, delivery_count)
        SELECT fates[n], fates[n + 1], fates[n + 2], fates[n + 3], fates[n + 4], fates[n + 5]
        FROM generate_series(1, cardinality(fates), 6) AS n;
    END IF;
    IF cardinality(gone_fates) > 0 THEN
        DELETE FROM fate USING generate_series(1, cardinality(gone_fates), 2) AS n
        WHERE key BETWEEN gone_fates[n] AND gone_fates[n + 1];
    END IF;

    IF cardinality(sink_ids) > 0 THEN
        -- partition row, sink, id (first, length), batch
        INSERT INTO sink_id (partition_row, sink, id, batch)
        SELECT sink_ids[n], sink_ids[n + 1],
            substring(sink_id_data FROM sink_ids[n + 2]::integer FOR sink_ids[n + 3]::integer), sink_ids[n + 4]
        FROM generate_series(1, cardinality(sink_ids), 5) AS n
        ON CONFLICT (partition_row, sink, id) DO UPDATE SET batch = excluded.batch;
    END IF;
    IF cardinality(sink_batches) > 0 THEN
        INSERT INTO sink_batch (partition_row, sink, batch)
        SELECT sink_batches[n], sink_batches[n + 1], sink_batches[n + 2]
        FROM generate_series(1, cardinality(sink_batches), 3) AS n
        ON CONFLICT (partition_row, sink) DO UPDATE SET batch = excluded.batch;
    END IF;
    IF cardinality(gone_sink_ids) > 0 THEN
        FOR at IN 1 .. cardinality(gone_sink_ids) BY 4 LOOP
            DELETE FROM sink_id WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM sink_id
                WHERE partition_row = gone_sink_ids[at] AND sink = gone_sink_ids[at + 1]
                    AND batch <= gone_sink_ids[at + 2]
                ORDER BY batch, id LIMIT gone_sink_ids[at + 3]
            ));
        END LOOP;
    END IF;

    IF cardinality(session_locks) > 0 THEN
        -- partition row, session (first, length), lock id, time, holder (first, length)
        DELETE FROM session_lock USING (
            SELECT session_locks[n] AS partition_row,
                substring(session_lock_data FROM session_locks[n + 1]::integer
                          FOR session_locks[n + 2]::integer) AS session
            FROM generate_series(1, cardinality(session_locks), 7) AS n
            WHERE session_locks[n + 5] = 0
        ) AS free
        WHERE session_lock.partition_row = free.partition_row AND session_lock.session = free.session;
        INSERT INTO session_lock (partition_row, session, lock_id, until_ms, holder)
        SELECT session_locks[n],
            substring(session_lock_data FROM session_locks[n + 1]::integer FOR session_locks[n + 2]::integer),
            session_locks[n + 3], session_locks[n + 4],
            substring(session_lock_data FROM session_locks[n + 5]::integer FOR session_locks[n + 6]::integer)
        FROM generate_series(1, cardinality(session_locks), 7) AS n
        WHERE session_locks[n + 5] > 0
        ON CONFLICT (partition_row, session) DO UPDATE SET
            lock_id = excluded.lock_id, until_ms = excluded.until_ms, holder = excluded.holder;
    END IF;

    IF cardinality(unlocked) > 0 THEN
        DELETE FROM lock_batch WHERE lock_key = ANY (unlocked);
    END IF;
    IF cardinality(locks) > 0 THEN
        INSERT INTO lock_batch (lock_key, first_pos, until_ms, bitmap)
        SELECT locks[n], locks[n + 1], locks[n + 2],
            substring(lock_data FROM locks[n + 3]::integer FOR locks[n + 4]::integer)
        FROM generate_series(1, cardinality(locks), 5) AS n
        ON CONFLICT (lock_key, first_pos) DO UPDATE SET until_ms = excluded.until_ms, bitmap = excluded.bitmap;
    END IF;

    IF cardinality(gone_entries) > 0 THEN
        DELETE FROM entry USING generate_series(1, cardinality(gone_entries), 2) AS n
        WHERE key BETWEEN gone_entries[n] AND gone_entries[n + 1];
    END IF;
    IF cardinality(gone_bodies) > 0 THEN
        DELETE FROM body USING generate_series(1, cardinality(gone_bodies), 2) AS n
        WHERE key BETWEEN gone_bodies[n] AND gone_bodies[n + 1];
    END IF;
    IF cardinality(gone_shared_bodies) > 0 THEN
        DELETE FROM body WHERE key = ANY (gone_shared_bodies) AND NOT EXISTS (
            SELECT 1 FROM entry WHERE entry.body = body.key AND ((entry.body >> 38) & 1) <> 0
        );
    END IF;

    -- What makes it a partition goes at once; its messages, which may be millions, are noted for the sweep.
    IF cardinality(dropped) > 0 THEN
        DELETE FROM partition WHERE partition_row = ANY (dropped);
        DELETE FROM left_off WHERE partition_row = ANY (dropped);
        DELETE FROM subqueue USING unnest(dropped) AS gone
        WHERE key BETWEEN gone << 2 AND ((gone + 1) << 2) - 1;
        DELETE FROM lock_batch USING unnest(dropped) AS gone
        WHERE lock_key BETWEEN gone << 42 AND (gone << 42) + ((1::bigint << 42) - 1);
        DELETE FROM inbound_mark WHERE partition_row = ANY (dropped);
        DELETE FROM cursor USING unnest(dropped) AS gone WHERE subqueue BETWEEN gone << 2 AND ((gone + 1) << 2) - 1;
        DELETE FROM retained USING unnest(dropped) AS gone WHERE key BETWEEN gone << 2 AND ((gone + 1) << 2) - 1;
        DELETE FROM sink_batch WHERE partition_row = ANY (dropped);
        DELETE FROM session_lock WHERE partition_row = ANY (dropped);
        INSERT INTO dropped_partition (partition_row) SELECT DISTINCT unnest(dropped) ON CONFLICT DO NOTHING;
    END IF;
END
$$;
