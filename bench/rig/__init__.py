"""What the benchmarks share: places to run in, what is changed on the system and undone, figures. Standard library only."""
