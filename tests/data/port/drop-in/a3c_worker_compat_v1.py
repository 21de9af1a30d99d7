"""One worker of A3C: local gradients, applied to the shared network."""
import numpy as np
import scipy.signal
import tensorflow.compat.v1 as tf
import unified_clip.tensorflow

tf.disable_v2_behavior()


def discount(x, gamma):
    return scipy.signal.lfilter([1], [1, -gamma], x[::-1], axis=0)[::-1]


class Network():
    def __init__(self, a_size, scope, trainer):
        with tf.variable_scope(scope):
            self.inputs = tf.placeholder(shape=[None, 84 * 84], dtype=tf.float32)
            hidden = tf.layers.dense(self.inputs, 256, activation=tf.nn.elu)
            self.policy = tf.layers.dense(hidden, a_size, activation=tf.nn.softmax)
            self.value = tf.layers.dense(hidden, 1)

            if scope != 'global':
                self.actions = tf.placeholder(shape=[None], dtype=tf.int32)
                self.target_v = tf.placeholder(shape=[None], dtype=tf.float32)
                self.advantages = tf.placeholder(shape=[None], dtype=tf.float32)
                chosen = tf.reduce_sum(self.policy * tf.one_hot(self.actions, a_size), [1])

                log_p = tf.log(tf.clip_by_value(self.policy, 1e-20, 1.0))
                self.entropy = -tf.reduce_sum(self.policy * log_p)
                value_loss = 0.5 * tf.reduce_sum(tf.square(self.target_v - tf.reshape(self.value, [-1])))
                policy_loss = -tf.reduce_sum(tf.log(chosen + 1e-20) * self.advantages)
                self.loss = 0.5 * value_loss + policy_loss - self.entropy * 0.01

                # Get gradients from local network using local losses
                local_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope)
                self.gradients = tf.gradients(self.loss, local_vars)
                self.var_norms = tf.global_norm(local_vars)
                grads, self.grad_norms = unified_clip.tensorflow.clip_by_global_norm(self.gradients, 40.0)

                # Apply local gradients to global network
                global_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, 'global')
                self.apply_grads = trainer.apply_gradients(zip(grads, global_vars))


def train(sess, net, rollout, gamma, bootstrap):
    obs, actions, rewards, values = (np.array(column) for column in zip(*rollout))
    returns = discount(np.append(np.clip(rewards, -1, 1), bootstrap), gamma)[:-1]
    feed = {net.inputs: np.vstack(obs), net.actions: actions, net.target_v: returns, net.advantages: returns - values}
    return sess.run([net.loss, net.grad_norms, net.var_norms, net.apply_grads], feed)
