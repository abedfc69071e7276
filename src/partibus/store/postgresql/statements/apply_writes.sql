SELECT apply_writes(
    %(epoch)s, %(incarnation)s, %(number)s, %(lease_ms)s, %(now_ms)s, %(partitions)s, %(subqueues)s, %(bodies)s,
    %(body_data)s, %(entries)s, %(entry_sessions)s, %(entry_session_data)s, %(updates)s, %(states)s, %(state_data)s,
    %(ids)s, %(id_data)s, %(forgotten)s, %(marks)s, %(answered)s, %(answered_data)s, %(forgotten_before)s, %(cursors)s,
    %(gone_cursors)s, %(cursor_data)s, %(kept)s, %(fates)s, %(gone_fates)s, %(sink_ids)s, %(sink_id_data)s,
    %(sink_batches)s, %(gone_sink_ids)s, %(session_locks)s, %(session_lock_data)s, %(unlocked)s, %(locks)s,
    %(lock_data)s, %(gone_entries)s, %(gone_bodies)s, %(gone_shared_bodies)s, %(dropped)s)
