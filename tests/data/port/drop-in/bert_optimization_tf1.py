# coding=utf-8
"""Functions and classes related to optimization (weight updates)."""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import re
import tensorflow as tf
import unified_clip.tensorflow


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps, use_tpu):
  """Creates an optimizer training op."""
  global_step = tf.train.get_or_create_global_step()
  learning_rate = tf.constant(value=init_lr, shape=[], dtype=tf.float32)
  learning_rate = tf.train.polynomial_decay(
      learning_rate, global_step, num_train_steps, end_learning_rate=0.0, power=1.0, cycle=False)

  if num_warmup_steps:
    done = tf.cast(global_step, tf.float32) / tf.constant(num_warmup_steps, tf.float32)
    # no gradient: keeps the share in [0, 1]
    learning_rate = learning_rate * tf.clip_by_value(done, 0.0, 1.0)

  optimizer = DecayingAdam(learning_rate=learning_rate, weight_decay_rate=0.01,
                           exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"])
  if use_tpu:
    optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)

  tvars = tf.trainable_variables()
  grads = tf.gradients(loss, tvars)

  # This is how the model was pre-trained.
  (grads, _) = unified_clip.tensorflow.clip_by_global_norm(grads, clip_norm=1.0)

  train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)
  new_global_step = global_step + 1
  train_op = tf.group(train_op, [global_step.assign(new_global_step)])
  return train_op


class DecayingAdam(tf.train.Optimizer):
  """Adam with decay of weights that is no part of the loss."""

  def __init__(self, learning_rate, weight_decay_rate=0.0, exclude_from_weight_decay=None, name="DecayingAdam"):
    super(DecayingAdam, self).__init__(False, name)
    self.learning_rate = learning_rate
    self.weight_decay_rate = weight_decay_rate
    self.exclude_from_weight_decay = exclude_from_weight_decay

  def _do_use_weight_decay(self, param_name):
    if not self.weight_decay_rate:
      return False
    return not any(re.search(r, param_name) for r in self.exclude_from_weight_decay or ())
