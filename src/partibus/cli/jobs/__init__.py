"""`partibus pipeline`: one file per job, with its options; what it does is in `partibus.pipeline`."""
