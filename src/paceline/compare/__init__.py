"""Runs side by side, from their records.

rows        problems, and a row for each strategy on each number of ranks
theory      what is known about a run's strategy, and what it should have sent
verdict     what the strategies gained, in sentences
target      an accuracy to reach, and when each row reached it
laws        Amdahl's and Gustafson's laws and lines, fitted
staleness   how old gradients were when they were applied
"""
