UPDATE lock_batch SET until_ms = :end_ms WHERE until_ms > :end_ms
