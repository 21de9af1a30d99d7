"""Deep Q learning graph."""
import tensorflow as tf
import baselines.common.tf_util as U
import unified_clip.tensorflow


def scope_vars(scope, trainable_only=False):
    key = tf.GraphKeys.TRAINABLE_VARIABLES if trainable_only else tf.GraphKeys.GLOBAL_VARIABLES
    return tf.get_collection(key, scope=scope)


def build_train(make_obs_ph, q_func, num_actions, optimizer, grad_norm_clipping=None, gamma=1.0,
                scope="deepq", reuse=None):
    with tf.variable_scope(scope, reuse=reuse):
        obs_t_input = make_obs_ph("obs_t")
        act_t_ph = tf.placeholder(tf.int32, [None], name="action")
        rew_t_ph = tf.placeholder(tf.float32, [None], name="reward")
        obs_tp1_input = make_obs_ph("obs_tp1")
        done_mask_ph = tf.placeholder(tf.float32, [None], name="done")

        q_t = q_func(obs_t_input.get(), num_actions, scope="q_func", reuse=True)
        q_func_vars = scope_vars(tf.get_variable_scope().name + "/q_func")
        q_tp1 = q_func(obs_tp1_input.get(), num_actions, scope="target_q_func")
        q_t_selected = tf.reduce_sum(q_t * tf.one_hot(act_t_ph, num_actions), 1)
        q_tp1_best = (1.0 - done_mask_ph) * tf.reduce_max(q_tp1, 1)
        # rewards are clipped as in the paper
        target = tf.clip_by_value(rew_t_ph, -1., 1.) + gamma * q_tp1_best
        td_error = q_t_selected - tf.stop_gradient(target)
        weighted_error = tf.reduce_mean(U.huber_loss(td_error))

        # compute optimization op (potentially with gradient clipping)
        if grad_norm_clipping is not None:
            gradients = optimizer.compute_gradients(weighted_error, var_list=q_func_vars)
            for i, (grad, var) in enumerate(gradients):
                if grad is not None:
                    gradients[i] = (unified_clip.tensorflow.clip_by_norm(grad, grad_norm_clipping), var)
            optimize_expr = optimizer.apply_gradients(gradients)
        else:
            optimize_expr = optimizer.minimize(weighted_error, var_list=q_func_vars)

        return U.function(
            inputs=[obs_t_input, act_t_ph, rew_t_ph, obs_tp1_input, done_mask_ph],
            outputs=td_error,
            updates=[optimize_expr],
        )
