"""An update loop of an agent library in TensorFlow 2: a tape, a ratio, `tf.clip_by_global_norm`, Keras' optimizer."""

from __future__ import annotations

import setting
import tensorflow as tf


def dense(units: int) -> tf.keras.layers.Dense:
    return tf.keras.layers.Dense(units)


class ActorCritic(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.torso = dense(setting.HIDDEN), dense(setting.HIDDEN)
        self.actor, self.critic = dense(setting.ACTIONS), dense(1)

    def call(self, obs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        out = tf.tanh(self.torso(tf.tanh(self.hidden(obs))))
        return self.actor(out), tf.squeeze(self.critic(out), -1)


class Agent:
    def __init__(self, clip_ratio: float = 0.2, max_grad_norm: float = 0.5) -> None:
        self.model, self.clip_ratio, self.max_grad_norm = ActorCritic(), clip_ratio, max_grad_norm
        self.model(tf.zeros((1, setting.OBSERVATIONS)))
        for name in ("hidden", "torso", "actor", "critic"):
            layer = getattr(self.model, name)
            shapes = {"weight": layer.kernel.shape, "bias": layer.bias.shape}
            layer.set_weights([setting.weight(f"{name}.{which}", *shape) for which, shape in shapes.items()])
        self.optimizer = tf.keras.optimizers.RMSprop(7e-3, rho=0.99, epsilon=1e-5)

    def update(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits, value = self.model(batch["obs"])
            logprobs = tf.nn.log_softmax(logits)
            logprob = tf.reduce_sum(logprobs * tf.one_hot(batch["action"], setting.ACTIONS), -1)
            ratio = tf.exp(logprob - batch["logprob"])
            clipped = tf.clip_by_value(ratio, 1 - self.clip_ratio, 1 + self.clip_ratio)
            policy_loss = -tf.reduce_mean(tf.minimum(batch["advantage"] * ratio, batch["advantage"] * clipped))
            value_loss = 0.5 * tf.reduce_mean(tf.square(value - batch["returns"]))
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logprobs) * logprobs, -1))
            loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        variables = self.model.trainable_variables
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), self.max_grad_norm)
        self.optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss


def main(updates: int = 8) -> None:
    agent = Agent()
    for batch in setting.rollouts(updates):
        agent.update({name: tf.constant(array) for name, array in batch.items()})


main()
