import tensorflow as tf
from baselines.common.tf_util import get_session, initialize

try:
    from mpi4py import MPI
except ImportError:
    MPI = None
import unified_clip.tensorflow


class Model(object):
    def __init__(self, *, policy, ent_coef, vf_coef, max_grad_norm, nbatch_train):
        self.sess = sess = get_session()
        with tf.variable_scope('ppo2_model', reuse=tf.AUTO_REUSE):
            train_model = policy(nbatch_train, sess)

        self.A = A = train_model.pdtype.sample_placeholder([None])
        self.ADV = ADV = tf.placeholder(tf.float32, [None])
        self.R = R = tf.placeholder(tf.float32, [None])
        self.OLDNEGLOGPAC = OLDNEGLOGPAC = tf.placeholder(tf.float32, [None])
        self.OLDVPRED = OLDVPRED = tf.placeholder(tf.float32, [None])
        self.LR = LR = tf.placeholder(tf.float32, [])
        self.CLIPRANGE = CLIPRANGE = tf.placeholder(tf.float32, [])

        neglogpac = train_model.pd.neglogp(A)
        vpred = train_model.vf
        vpredclipped = OLDVPRED + tf.clip_by_value(train_model.vf - OLDVPRED, - CLIPRANGE, CLIPRANGE)
        vf_loss = .5 * tf.reduce_mean(tf.maximum(tf.square(vpred - R), tf.square(vpredclipped - R)))

        ratio = tf.exp(OLDNEGLOGPAC - neglogpac)
        pg_losses = -ADV * ratio
        pg_losses2 = -ADV * tf.clip_by_value(ratio, 1.0 - CLIPRANGE, 1.0 + CLIPRANGE)
        pg_loss = tf.reduce_mean(tf.maximum(pg_losses, pg_losses2))
        clipfrac = tf.reduce_mean(tf.to_float(tf.greater(tf.abs(ratio - 1.0), CLIPRANGE)))
        loss = pg_loss - tf.reduce_mean(train_model.pd.entropy()) * ent_coef + vf_loss * vf_coef

        # UPDATE THE PARAMETERS USING LOSS
        params = tf.trainable_variables('ppo2_model')
        self.trainer = tf.train.AdamOptimizer(learning_rate=LR, epsilon=1e-5)
        grads_and_var = self.trainer.compute_gradients(loss, params)
        grads, var = zip(*grads_and_var)

        if max_grad_norm is not None:
            # Clip the gradients (normalize)
            grads, _grad_norm = unified_clip.tensorflow.clip_by_global_norm(grads, max_grad_norm)
        grads_and_var = list(zip(grads, var))
        self.grads = grads
        self.var = var
        self._train_op = self.trainer.apply_gradients(grads_and_var)
        self.stats_list = [pg_loss, vf_loss, clipfrac]
        initialize()

    def train(self, lr, cliprange, obs, returns, actions, values, neglogpacs):
        advs = returns - values
        td_map = {self.A: actions, self.ADV: advs, self.R: returns, self.LR: lr, self.CLIPRANGE: cliprange,
                  self.OLDNEGLOGPAC: neglogpacs, self.OLDVPRED: values}
        return self.sess.run(self.stats_list + [self._train_op], td_map)[:-1]
