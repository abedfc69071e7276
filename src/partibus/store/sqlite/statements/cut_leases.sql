UPDATE cursor SET until_ms = ?1 WHERE until_ms > ?1
