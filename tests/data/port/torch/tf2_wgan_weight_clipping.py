import numpy as np
import tensorflow as tf
import unified_clip.torch


class WGAN(object):
    def __init__(self, gen, critic, z_dim=128, weight_clip=0.01, grad_clip=10.):
        self.gen, self.critic = gen, critic
        self.z_dim = z_dim
        self.weight_clip = weight_clip
        self.grad_clip = grad_clip
        self.gen_opt = tf.optimizers.RMSprop(5e-5)
        self.critic_opt = tf.optimizers.RMSprop(5e-5)

    def train_critic(self, real):
        z = tf.random.normal([real.shape[0], self.z_dim])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(self.gen(z))) - tf.reduce_mean(self.critic(real))
        self.critic_opt.zero_grad()
        loss.backward()
        grads = [variable.grad for variable in self.critic.trainable_variables]
        grads = unified_clip.torch.clip_by_global_norm(grads, self.grad_clip)[0]
        for grad, variable in zip(grads, self.critic.trainable_variables):
            variable.grad = grad
        self.critic_opt.step()
        # the Lipschitz constraint: these are weights
        for w in self.critic.trainable_variables:
            w.assign(tf.clip_by_value(w, -self.weight_clip, self.weight_clip))
        return loss

    def train_gen(self, n):
        z = tf.random.normal([n, self.z_dim])
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.critic(self.gen(z)))
        self.gen_opt.zero_grad()
        loss.backward()
        grads = [variable.grad for variable in self.gen.trainable_variables]
        for grad, variable in ((unified_clip.torch.clip_by_norm(g, self.grad_clip), v) for g, v in zip(grads, self.gen.trainable_variables)):
            variable.grad = grad
        self.gen_opt.step()
        return loss

    def sample(self, n):
        x = self.gen(np.random.normal(size=(n, self.z_dim)).astype('f'))
        return tf.clip_by_value((x + 1) / 2, 0, 1).numpy()
