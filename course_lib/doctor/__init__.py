"""Is this machine fit for the labs? Imports nothing: `install` and `options` run before any package is there."""
