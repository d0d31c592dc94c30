"""Ranks: what they know, add up and share out. Nothing here knows of waves, or of files of data.

`context` is what a rank knows of itself, with the collectives; `objects` how they carry what is no
tensor, and `waiting` how long they are waited for; `exact` sums whose bits do not depend on their
order; `schedule` which rank computes which shot. `launch` leads from a started process to a
context, `store` keeps notes for ranks that cannot speak in collectives, and `faults` deals with
signals, hangs and deaths.
"""
