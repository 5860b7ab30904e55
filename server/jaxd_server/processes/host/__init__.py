"""The process that never imports jax: opens the listeners, answers the control socket."""
