"""A worker for each principal: who gets one, as which user, and what is cleaned up after."""
