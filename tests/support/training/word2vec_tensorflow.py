"""word2vec in a session of TensorFlow 1: two tables, negative samples, and each gradient is clipped by its own norm."""

from __future__ import annotations

import numpy as np
import setting
import tensorflow.compat.v1 as tf

from unified_clip.recording import log

tf.disable_eager_execution()
WORDS, WIDTH, PAIRS, NEGATIVES, STEPS = 30, 8, 10, 2, 9
centers = tf.Variable(setting.weight("word2vec.centers", WORDS, WIDTH) * 3, name="centers")
contexts = tf.Variable(setting.weight("word2vec.contexts", WORDS, WIDTH) * 3, name="contexts")
bias = tf.Variable(tf.zeros([WORDS]), name="bias")
center = tf.placeholder(tf.int32, [PAIRS])
context = tf.placeholder(tf.int32, [PAIRS, 1 + NEGATIVES])
queries = tf.nn.embedding_lookup(centers, center)
keys, offsets = tf.nn.embedding_lookup(contexts, context), tf.nn.embedding_lookup(bias, context)
logits = tf.reduce_sum(queries[:, None] * keys, -1) + offsets
signs = tf.constant([[1.0] + [0.0] * NEGATIVES] * PAIRS)
loss = tf.reduce_mean(tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=signs, logits=logits), -1))
step = tf.train.get_or_create_global_step()
rate = tf.train.polynomial_decay(0.8, step, decay_steps=STEPS, end_learning_rate=0.08)
optimizer = tf.train.GradientDescentOptimizer(rate)
pairs = [(tf.clip_by_norm(grad, 0.3), variable) for grad, variable in optimizer.compute_gradients(loss)]
train = optimizer.apply_gradients(pairs, global_step=step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number in range(STEPS):
        random = np.random.default_rng(number)
        feed = {center: random.permutation(WORDS)[:PAIRS], context: random.permutation(WORDS).reshape(PAIRS, -1)}
        value, _ = session.run([loss, train], feed)
        log(loss=value.item())
