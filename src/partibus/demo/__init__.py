"""`partibus demo`, the main job on real input: flights to a topic, Spark over its subscriptions, and a proof.

The topic has three subscriptions, whose partitions Spark reads in parallel.

```text
 flights ─▶ envelopes ─▶ replay (sender processes, azure-servicebus) ─▶ broker ─▶ pipeline (Spark) ─▶ Parquet tables
    │                      │ tally per key                    topology, filters      │ tally per key      │
    │                      └──────────────────────────▶ proof ◀──────────────────────┘                    │
    └─▶ selection (pandas): rows per subscription ──────▶ │ ◀─────────────────────────────────────────────┘
                                                          └─▶ report (HTML with plots)
```
"""
