"""What a run will take, and what would spoil it: found before it runs, and told."""
