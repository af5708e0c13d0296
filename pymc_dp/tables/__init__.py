"""Tables from files, read with suspicion: one way for the command line and for agencies' files.

A cell that ends up under another column's name is a wrong estimate that looks right. So a table is
read as what its header says or not at all, and a refusal names the file, the line and the remedy,
never a cell. Until rows are read nothing here needs more than the standard library.
"""
