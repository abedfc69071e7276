UPDATE cursor SET until_ms = :end_ms WHERE until_ms > :end_ms
