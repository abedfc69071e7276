"""The public test kit: what somebody who extends the broker needs to prove it still keeps its promises."""
