"""Studies: a file that asks for many runs, and the folder that holds them.

file       read a study's file, find every mistake in it, and create its cells
cells      one run each, identified by its settings and by the user's own code
folder     the study's folder: its lock, its runs, notes of what failed, and what reports show besides the runs
run        run the missing cells, one after the other
"""
