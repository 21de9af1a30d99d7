"""A DQN agent."""
import collections

import gin
import tensorflow as tf

from tf_agents.agents import tf_agent
from tf_agents.utils import common, eager_utils, value_ops

DqnLossInfo = collections.namedtuple('DqnLossInfo', ('td_loss', 'td_error'))


@gin.configurable
class DqnAgent(tf_agent.TFAgent):

  def __init__(self, time_step_spec, action_spec, q_network, optimizer, gradient_clipping=None, gamma=1.0,
               reward_scale_factor=1.0, debug_summaries=False, name=None):
    tf.Module.__init__(self, name=name)
    self._q_network = q_network
    self._optimizer = optimizer
    self._gradient_clipping = gradient_clipping
    self._gamma = gamma
    super(DqnAgent, self).__init__(time_step_spec, action_spec, debug_summaries=debug_summaries)

  # Use @common.function in graph mode or for speeding up.
  def _train(self, experience, weights):
    with tf.GradientTape() as tape:
      loss_info = self._loss(experience, weights=weights, training=True)
    tf.debugging.check_numerics(loss_info.loss, 'Loss is inf or nan')
    variables_to_train = self._q_network.trainable_weights
    grads = tape.gradient(loss_info.loss, variables_to_train)
    # Tuple is used for py3, where zip is a generator producing values once.
    grads_and_vars = list(zip(grads, variables_to_train))
    if self._gradient_clipping is not None:
      grads_and_vars = eager_utils.clip_gradient_norms(grads_and_vars, self._gradient_clipping)
    if self._debug_summaries:
      eager_utils.add_gradients_summaries(grads_and_vars, self.train_step_counter)
    self._optimizer.apply_gradients(grads_and_vars)
    self.train_step_counter.assign_add(1)
    return loss_info

  def _scale(self, reward):
    return tf.clip_by_value(reward, -1, 1)
