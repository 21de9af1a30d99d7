#!/usr/bin/env python
import argparse
import time
import tensorflow as tf
from tensorflow.contrib import rnn

from utils import TextLoader
import unified_clip.tensorflow


class Model():
    def __init__(self, args):
        cells = [rnn.BasicLSTMCell(args.rnn_size) for _ in range(args.num_layers)]
        self.cell = cell = rnn.MultiRNNCell(cells)
        self.input_data = tf.placeholder(tf.int32, [args.batch_size, args.seq_length])
        self.targets = tf.placeholder(tf.int32, [args.batch_size, args.seq_length])
        embedding = tf.get_variable("embedding", [args.vocab_size, args.rnn_size])
        outputs, self.final_state = tf.nn.dynamic_rnn(
            cell, tf.nn.embedding_lookup(embedding, self.input_data), dtype=tf.float32)
        logits = tf.layers.dense(outputs, args.vocab_size)
        self.cost = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.targets, logits=logits))
        self.lr = tf.Variable(0.0, trainable=False)
        tvars = tf.trainable_variables()
        grads, _ = unified_clip.tensorflow.clip_by_global_norm(tf.gradients(self.cost, tvars),
                args.grad_clip)
        with tf.name_scope('optimizer'):
            optimizer = tf.train.AdamOptimizer(self.lr)
        self.train_op = optimizer.apply_gradients(zip(grads, tvars))


def train(args):
    loader = TextLoader(args.data_dir, args.batch_size, args.seq_length)
    args.vocab_size = loader.vocab_size
    model = Model(args)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for e in range(args.num_epochs):
            sess.run(tf.assign(model.lr, args.learning_rate * (args.decay_rate ** e)))
            for b in range(loader.num_batches):
                start = time.time()
                x, y = loader.next_batch()
                loss, _ = sess.run([model.cost, model.train_op], {model.input_data: x, model.targets: y})
                print("%d/%d loss = %.3f, time/batch = %.3f" % (b, loader.num_batches, loss, time.time() - start))
