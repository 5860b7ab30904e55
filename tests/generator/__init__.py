"""Random projects, edited while they run: each answer is compared with what plain jax says (`make identity`)."""
