"""From survey records, or a table, to direct estimates with variance and sensitivity."""
