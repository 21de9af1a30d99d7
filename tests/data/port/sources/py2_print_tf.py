import tensorflow as tf
import numpy as np
import cPickle
import sys

flags = tf.flags
flags.DEFINE_float("max_grad_norm", 5.0, "clip")
FLAGS = flags.FLAGS


class PTBModel(object):
    def __init__(self, is_training, config):
        self.lr = tf.Variable(0.0, trainable=False)
        tvars = tf.trainable_variables()
        grads, _ = tf.clip_by_global_norm(tf.gradients(self.cost, tvars), config.max_grad_norm)
        optimizer = tf.train.GradientDescentOptimizer(self.lr)
        self.train_op = optimizer.apply_gradients(zip(grads, tvars))


def run_epoch(session, m, data, verbose=False):
    costs = 0.0
    for step in xrange(len(data)):
        cost, _ = session.run([m.cost, m.train_op], {m.inputs: data[step]})
        costs += cost
        if verbose and step % 100 == 10:
            print "%.3f perplexity: %.3f" % (step * 1.0 / len(data), np.exp(costs / step))
    return np.exp(costs / len(data))


if __name__ == "__main__":
    data = cPickle.load(open(sys.argv[1], "rb"))
    print >>sys.stderr, "loaded", len(data)
