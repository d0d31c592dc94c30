"""The work of commands: jobs, the run directory and its files, and the continuation of runs."""
