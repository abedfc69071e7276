"""HTTP: health for now."""
