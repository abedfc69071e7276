"""Operations of the `$management` nodes, one file each: request, checks, reply (section 6.3)."""
