"""Random projects, edited while they run, beside plain jax (`make identity`)."""
