import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from networks import Actor, Critic
import unified_clip.torch


class SAC:
    def __init__(self, obs_dim, act_dim, lr=3e-4, gamma=.99, clip=None):
        self.actor, self.q = Actor(act_dim), Critic()
        self.log_alpha = tf.Variable(0.0)
        self.target_entropy = -np.prod(act_dim)
        self.gamma = gamma
        self.clip = clip
        self.actor_optimizer = tf.keras.optimizers.Adam(lr)
        self.q_optimizer = tf.keras.optimizers.Adam(lr)
        self.alpha_optimizer = tf.keras.optimizers.Adam(lr)

    def update_q(self, s, a, r, s2, done):
        a2, logp = self.actor(s2)
        y = r + self.gamma * (1 - done) * (self.q(s2, a2) - tf.exp(self.log_alpha) * logp)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.q(s, a) - tf.stop_gradient(y)))
        self.q_optimizer.zero_grad()
        loss.backward()
        grads = [variable.grad for variable in self.q.trainable_variables]
        for grad, variable in zip(grads, self.q.trainable_variables):
            variable.grad = grad
        unified_clip.torch.GradientClipByNorm(1.0).clip_(self.q.trainable_variables)
        self.q_optimizer.step()
        return loss

    def update_actor(self, s):
        with tf.GradientTape(persistent=True) as tape:
            a, logp = self.actor(s)
            loss = tf.reduce_mean(tf.exp(self.log_alpha) * logp - self.q(s, a))
            alpha_loss = -tf.reduce_mean(self.log_alpha * tf.stop_gradient(logp + self.target_entropy))
        actor_grads = tape.gradient(loss, self.actor.trainable_variables)
        alpha_grads = tape.gradient(alpha_loss, [self.log_alpha])
        del tape
        if self.clip:
            actor_grads, _ = tf.clip_by_global_norm(actor_grads, self.clip)
        alpha_grads = [tf.clip_by_value(alpha_grads[0], -1.0, 1.0)]
        self.actor_optimizer.apply_gradients(zip(actor_grads, self.actor.trainable_variables))
        self.alpha_optimizer.apply_gradients(zip(alpha_grads, [self.log_alpha]))

    def log_prob(self, dist, a):
        pre_tanh = tf.atanh(tf.clip_by_value(a, -1 + 1e-6, 1 - 1e-6))
        return dist.log_prob(pre_tanh) - tfp.math.log1psquare(a)
