# pylint: disable=invalid-name
import functools

import tensorflow as tf
from tensorflow.contrib import layers as contrib_layers


def model_fn(features, labels, mode, params):
    net = tf.feature_column.input_layer(features, params['columns'])
    for units in params['hidden_units']:
        net = tf.layers.dense(net, units, activation=tf.nn.relu)
    logits = tf.layers.dense(net, params['n_classes'])

    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'p': tf.nn.softmax(logits)})

    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)

    train_op = tf.contrib.layers.optimize_loss(
        loss=loss,
        global_step=tf.train.get_global_step(),
        learning_rate=params['lr'],
        optimizer='Adam',
        # global norm of everything
        clip_gradients=params.get('clip', 5.0),
        summaries=['learning_rate', 'loss', 'global_gradient_norm'])
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def canned(columns, clip=None):
    opt = tf.train.AdagradOptimizer(0.05)
    if clip:
        opt = tf.contrib.estimator.clip_gradients_by_norm(opt, clip_norm=clip)
    return tf.estimator.DNNClassifier([64, 64], columns, optimizer=opt)


def noisy(loss, step):
    optimize = functools.partial(
        contrib_layers.optimize_loss, optimizer=tf.train.AdamOptimizer,
        clip_gradients=contrib_layers.adaptive_clipping_fn())
    return optimize(loss, step, 1e-3, gradient_noise_scale=None)
