"""Wrong answers that ship with the exercises, one module per lab: the misconceptions a check must name."""
