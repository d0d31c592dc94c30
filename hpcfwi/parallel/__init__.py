"""Ranks: what they know, add up and share. Nothing here knows of waves, or of files of data.

`launch` leads from a started process to a `Context`, which is what a rank knows of itself, with the
collectives (`context`). `rendezvous` is how ranks find each other, `transport` how they exchange
what is no tensor, `store` a dictionary for ranks that cannot speak in collectives. `exact` has sums
whose bits do not depend on their order; `replicas` has arrays that all ranks have, or all of one
host; `shards` decides which rank keeps or computes what. `watch` deals with signals and, by
`liveness`, with hangs. `failure` ends a job whose ranks raise, `recovery` goes on without ranks
that have died, and `supervisor` starts a failed job again, from outside.
"""
