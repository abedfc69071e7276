"""The main job on real input, `partibus demo`: flights to a topic with three subscriptions, Spark over the partitions
of these, and a proof.

```text
 flights ─▶ envelopes ─▶ replay (sender processes, azure-servicebus) ─▶ broker ─▶ pipeline (Spark) ─▶ Parquet tables
    │                      │ tally per key                    topology, filters      │ tally per key      │
    │                      └──────────────────────────▶ proof ◀──────────────────────┘                    │
    └─▶ selection (pandas): rows per subscription ──────▶ │ ◀─────────────────────────────────────────────┘
                                                          └─▶ report (HTML with plots)
```
"""
