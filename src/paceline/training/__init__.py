"""Training runs: their specification (`job`), one rank's part (`rank`), results, progress and replay."""
