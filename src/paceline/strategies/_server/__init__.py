"""The parts of the parameter server: who owns what (placement), when gradients are applied (disciplines), a piece at its
master (owned), the master's loop (master), what it receives (inbox) and sends (replies), what it may go back to (marks),
master 0's side work (chief), a worker's sends (outbox), what it all came to (staleness)."""
