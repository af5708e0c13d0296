"""What leaves the house: the public file, the statement, what a notebook shows."""
