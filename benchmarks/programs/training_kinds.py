"""Training loops that do more with their state than to give it to the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from benchmarks.programs.training import BATCHES, Training, optax, train_step

Decorate = Callable[..., Any]
"""`jax.jit`, or what takes its place: a function and its options to a function."""

ACCUMULATED: Final = 4


def gradients_of(total: Any, state: Any, batch: Any) -> Any:
    """The gradients so far and those of one more batch, and its loss."""

    def loss_of(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return jax.tree.map(lambda one, other: one + other, total, gradients), loss


def apply_gradients(state: Any, total: Any) -> Any:
    """The next state, and gradients to start from."""
    mean = jax.tree.map(lambda gradient: gradient / ACCUMULATED, total)
    return state.apply_gradients(grads=mean), jax.tree.map(lambda one: one * 0, total)


def averaged(average: Any, params: Any) -> Any:
    """A moving average of the parameters."""
    return jax.tree.map(lambda one, other: 0.99 * one + 0.01 * other, average, params)


class Plain(Training):
    """The state goes round.

    Args:
        decorate: decorates the functions.
    """

    def __init__(self, decorate: Decorate) -> None:
        super().__init__(decorate(train_step, donate_argnums=0))

    def run(self, steps: int) -> None:
        """Trains on, and returns when all of it is computed."""
        loss: Any = 0.0
        for turn in range(steps):
            loss = self.step(turn, self._batches[turn % BATCHES])
            if turn % 10 == 9:
                self.losses.append(float(loss))
        self.losses.append(float(loss))

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        self.state, loss = self._step(self.state, batch)
        return loss


class LeafRead(Plain):
    """One array of the state is looked at after each step."""

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        loss = super().step(turn, batch)
        if not np.isfinite(np.asarray(self.state.params["Dense_0"]["bias"])).all():
            raise FloatingPointError("the loop has diverged")
        return loss


class StepReplaced(Plain):
    """The caller counts the steps."""

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        self.state = self.state.replace(step=turn)
        return super().step(turn, batch)


class Averaged(Plain):
    """The caller keeps a moving average of the parameters."""

    def __init__(self, decorate: Decorate) -> None:
        super().__init__(decorate)
        self._averaged = decorate(averaged, donate_argnums=0)
        self._average = jax.tree.map(np.array, self.state.params)

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        loss = super().step(turn, batch)
        self._average = self._averaged(self._average, self.state.params)
        return loss


class Accumulated(Plain):
    """The state takes a step for each few batches; a step here is a batch."""

    def __init__(self, decorate: Decorate) -> None:
        super().__init__(decorate)
        self._add = decorate(gradients_of, donate_argnums=0)
        self._apply = decorate(apply_gradients, donate_argnums=(0, 1))
        self._total = jax.tree.map(np.zeros_like, self.state.params)

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        self._total, loss = self._add(self._total, self.state, batch)
        if turn % ACCUMULATED == ACCUMULATED - 1:
            self.state, self._total = self._apply(self.state, self._total)
        return loss


class TwoModels(Plain):
    """Two states take turns."""

    def __init__(self, decorate: Decorate) -> None:
        super().__init__(decorate)
        self._states: Sequence[Any] = (self.state, jax.tree.map(np.array, self.state))

    def step(self, turn: int, batch: Any) -> Any:
        """One step; its loss."""
        now, other = self._states
        now, loss = self._step(now, batch)
        self._states = other, now
        return loss


KINDS: Final[dict[str, Callable[[Decorate], Training]]] = {
    "plain": Plain,
    "leaf-read": LeafRead,
    "step-replaced": StepReplaced,
    "averaged": Averaged,
    "accumulated": Accumulated,
    "two-models": TwoModels,
}
"""By the name of a variant of the rows."""
