"""Area-level models as ordinary ``pm.Model`` objects, from inputs joined by label."""
