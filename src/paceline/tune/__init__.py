"""Tuning: find what reaches a target first on this machine, within a budget of time.

space      the candidates: strategy, ranks, threads, batch and learning rate
forecast   their speed by the simulator, before anything has been run
search     which candidates are run, for how long and how often
running    the runs of a search: ordinary records in a folder
answer     the fastest candidate, how sure that is, and the command to copy
"""
