"""Runs side by side, from their records.

rows        problems, and a row for each strategy on each number of ranks
theory      the facts about a run's strategy, and its expected traffic
answer      the target, when each row reached it, and which row to use, in one sentence
verdict     the gains of the strategies, in sentences
noise       the times of several runs: intervals, and when a difference counts
metric      measures of quality, such as accuracy: which way is better, and their values in a record
laws        Amdahl's and Gustafson's laws and lines, fitted
staleness   the age of gradients when they were applied
"""
