"""A worker for each principal: its start, its user and folder, and the cleanup after it."""
