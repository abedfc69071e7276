"""The Spark data source `partibus`: a queue's partitions as Spark partitions.

```text
 driver                                              one task per split
 options ─▶ source ─▶ reader.plan ─▶ planning        reader.read ─▶ decoding ─▶ Arrow record batches of `schema`
                          │ [first, end) of every          │
                          ▼ broker partition, frozen       ▼
                       connections (one per process and entity) ─▶ ports.BrowseClient ─▶ any broker
```

`source` and `session` are the files that import PySpark; everything else is plain Python with pyarrow.
"""
