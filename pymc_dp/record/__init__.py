"""What a release may say: its claim and assumptions, its figures and their names."""
