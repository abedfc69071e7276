"""HTTP: health, and the clock."""
