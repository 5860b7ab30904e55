"""What the documents say, tried: every block of code, every command, every link."""
