"""What was built, and why: log, differences, advice, and which principal may see them."""
