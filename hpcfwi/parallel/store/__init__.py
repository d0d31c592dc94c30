"""Notes that ranks leave for each other: a dictionary on rank 0, for those who know a secret.

`server` is rank 0's, `connection` every rank's, `messages` what the two say to each other. Notes
are left by `faults`, by `schedule`, and by torch.distributed, whose groups find each other here.
How the secret gets to the ranks is in `launch.rendezvous`.
"""
