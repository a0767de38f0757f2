"""What bench/micro/run.py is made of. Standard library only."""
