"""Credits: the budget of each namespace per period, its accounting, and the treatment of overuse (D23)."""
