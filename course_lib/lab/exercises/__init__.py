"""The exercises, one module per lab."""
