"""The privacy budget of a programme: what is spent, cell by cell, and the file that keeps it."""
