"""What needs a GPU to be seen, and `make gpu`, which runs it where one is there for minutes."""
