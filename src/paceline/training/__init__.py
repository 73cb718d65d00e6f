"""Training runs.

job          the specification of a run, from settings and objects; the settings of a run to replay
rank         one rank's part of a run (`train`), and its results (`Fitted`)
resuming     checkpoints: save them, go on from the last one, and go on when ranks die
watchdog     notice ranks that make no progress, and say where they are
progress     a bar on a terminal, or one line per epoch
"""
