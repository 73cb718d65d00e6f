"""Runs side by side, from their records.

rows        problems, and a row for each strategy on each number of ranks
theory      the facts about a run's strategy, and its expected traffic
verdict     the gains of the strategies, in sentences
target      an accuracy to reach, and when each row reached it
laws        Amdahl's and Gustafson's laws and lines, fitted
staleness   the age of gradients when they were applied
"""
