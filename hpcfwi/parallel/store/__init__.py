"""Notes that ranks leave for each other: a dictionary on rank 0, for those who know a secret.

How the secret gets to the ranks is in `launch.rendezvous`.
"""
