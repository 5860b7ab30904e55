"""What was built, and why: decisions, differences, advice, and who may see them."""
