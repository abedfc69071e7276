"""The main job on real input, `partibus demo`: flights through the broker, Spark over its partitions, and a proof.

```text
 flights ─▶ envelopes ─▶ replay (sender processes, azure-servicebus) ─▶ broker ─▶ pipeline (Spark) ─▶ Parquet tables
                           │ tally per key                                           │ tally per key and partition
                           └──────────────────────────▶ proof ◀──────────────────────┘
                                                          └─▶ report (HTML with plots)
```
"""
