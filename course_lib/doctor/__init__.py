"""Is this machine fit for the labs? Nothing is imported here: `install` and `options` run before anything is installed."""
