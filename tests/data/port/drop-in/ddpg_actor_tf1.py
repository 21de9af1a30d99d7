import tensorflow as tf
import unified_clip.tensorflow


class ActorNetwork(object):
    """The actor of DDPG: its gradient is the critic's, through the action."""

    def __init__(self, sess, state_dim, action_dim, action_bound, lr=1e-4, tau=1e-3, clip=1.):
        self.sess = sess
        self.inputs = tf.placeholder(tf.float32, [None, state_dim])
        net = tf.layers.dense(self.inputs, 400, activation=tf.nn.relu)
        self.out = tf.layers.dense(net, action_dim, activation=tf.nn.tanh) * action_bound
        self.network_params = tf.trainable_variables()

        self.action_gradient = tf.placeholder(tf.float32, [None, action_dim])
        # the placeholder is fed with a gradient
        bounded = tf.clip_by_value(self.action_gradient, -clip, clip)

        optimizer = tf.train.AdamOptimizer(lr)
        grads = tf.gradients(self.out, self.network_params, -bounded)
        capped_gvs = [(unified_clip.tensorflow.clip_by_value(grad, -1., 1.), var) for grad, var in zip(grads, self.network_params)]
        self.optimize = optimizer.apply_gradients(capped_gvs)

    def train(self, inputs, a_gradient):
        self.sess.run(self.optimize, feed_dict={
            self.inputs: inputs,
            self.action_gradient: a_gradient,
        })

    def predict(self, inputs):
        return self.sess.run(self.out, feed_dict={self.inputs: inputs})


class CriticNetwork(object):
    def __init__(self, sess, state, action, target, lr=1e-3):
        q = tf.layers.dense(tf.concat([state, action], 1), 1)
        loss = tf.reduce_mean(tf.square(q - target))
        opt = tf.train.AdamOptimizer(lr)
        gvs = opt.compute_gradients(loss)
        gvs = [(g if g is None else tf.clip_by_average_norm(g, 0.01), v) for g, v in gvs]
        self.optimize = opt.apply_gradients(gvs)
        self.action_grads = tf.gradients(q, action)
