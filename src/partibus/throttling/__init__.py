"""Credits: how much each namespace may do per period, who counts it, and what happens to what is over (D23)."""
