"""`partibus pipeline`: one file per job, with its options; the work is in `partibus.pipeline`."""
