"""Ranks: start, communication, division of work, and failures.

`launch` detects the program that started the process and makes its `Context`: its rank, its device
and the collectives (`context`). `rendezvous` connects the ranks, `transport` exchanges objects that
are not tensors, and `store` is a dictionary for communication outside of collectives. `exact` has
sums whose bits do not depend on the order of the terms, `replicas` compares arrays that every rank
has and shares arrays between the ranks of a host, `shards` divides arrays and shots between ranks,
and `crew` lets ranks simulate the same shots together. `watch` handles signals and hangs. Nothing
here depends on waves or data files.

Failures and signals, with the modules that handle them:

- All ranks raise the same exception: one message, exit code by its class (`failure`).
- One rank raises an exception: its message, and the job is aborted (`failure`).
- A rank dies: the launcher ends the job. Under Open MPI 5 with fault tolerance the other ranks
  repeat the interrupted work (`recovery`).
- A rank hangs: the job ends with exit code 1 (`watch`).
- A signal arrives: a checkpoint, then exit code 3 (`watch`).
- A job has failed: `run.restarts` starts it again from outside.
"""
