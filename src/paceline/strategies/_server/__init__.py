"""The parts of the parameter server: who owns what (placement), when gradients are applied (disciplines), a piece at its
master (owned), the master's loop (master), master 0's side work (chief), a worker's sends (outbox), what it all came to
(staleness)."""
