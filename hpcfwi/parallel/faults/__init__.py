"""Signals, hangs, dead ranks, restarts. The algorithm knows none of it.

`stop` notes signals, for the ranks to obey together; `liveness` tells who works, who waits and who
is missing, from what a rank's heartbeat shows; `watch` is the thread beside each rank that acts on
both. `failure` ends a job whose ranks raise, `recovery` goes on without ranks that have died, and
`supervisor` starts a job that has failed again, from outside.
"""
