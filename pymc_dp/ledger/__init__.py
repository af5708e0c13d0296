"""The privacy budget of a programme, and the file that keeps it."""
