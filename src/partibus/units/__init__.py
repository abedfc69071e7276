"""Who gets how much of a broker process: turns, messaging units, load, and how many units there should be."""
